"""What a site has when training is over: its models, its forecasts and its errors.

The same files as in the folder of a run on one machine, so that `fuels forecast` works on it.
"""

from __future__ import annotations

from pathlib import Path

from fuels.config import Engine, write_toml
from fuels.methods.messages import Download
from fuels.runs.build import Job
from fuels.runs.run import essentials, evaluate_job, write_evaluation, write_models
from fuels.storage.run_folder import RunFolder


def write_results(job: Job, path: Path, download: Download, rounds: int, engine: Engine) -> None:
    """The run's folder: models, forecasts, mixture and its weights, config.toml, summary.json."""
    folder, dataset = RunFolder(path), job.dataset
    write_toml(folder.config, job.settings, engine)
    models = write_models(job, folder, download)
    judged = evaluate_job(job, models)
    write_evaluation(dataset, folder, judged)
    first, last = dataset.split.part("val")
    best = job.settings.training.keep == "best" and last > first
    folder.finish(essentials(job, judged, rounds=rounds, best=best))
