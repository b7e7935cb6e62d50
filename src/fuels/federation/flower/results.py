"""What a site has when training is over: its models, its forecasts and its errors.

The same files as in the folder of a run on one machine, so that `fuels forecast` works on it.
"""

from __future__ import annotations

from pathlib import Path

from fuels.build import Job
from fuels.config import Engine, write_toml
from fuels.judge import judge_models
from fuels.messages import Download
from fuels.report.folder import RunFolder
from fuels.run import essentials, write_judged, write_models


def write_results(job: Job, path: Path, download: Download, rounds: int, engine: Engine) -> None:
    """The run's folder: models, forecasts, mixture and its weights, config.toml, summary.json."""
    folder, dataset = RunFolder(path), job.dataset
    write_toml(folder.config, job.settings, engine)
    models = write_models(job, folder, download)
    judged = judge_models(job, models)
    write_judged(dataset, folder, judged)
    first, last = dataset.split.part("val")
    best = job.settings.training.keep == "best" and last > first
    folder.finish(essentials(job, judged, rounds=rounds, best=best))
