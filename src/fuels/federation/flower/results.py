"""What a site has when training is over: its models, its forecasts and its errors.

The same files as in the folder of a run on one machine, so that `fuels forecast` works on it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from fuels.config import Engine, write_toml
from fuels.methods.messages import Download
from fuels.runs.build import Job
from fuels.runs.run import (
    essentials,
    evaluate_job,
    kept_models,
    write_evaluation,
    write_models,
)
from fuels.storage.run_folder import RunFolder


def write_results(
    job: Job, path: Path, download: Download, rounds: int, engine: Engine, best_round: int = 0
) -> None:
    """The run's folder: models, forecasts, mixture and its weights, config.toml, summary.json.

    `best_round`: the round of the model in `download`, where the server kept that of its best one.
    """
    folder, dataset = RunFolder(path), job.dataset
    write_toml(folder.config, job.settings, engine)
    models = write_models(job, folder, download)
    judged = evaluate_job(job, models)
    write_evaluation(dataset, folder, judged)
    kept = kept_models(job, shared_best=best_round > 0)
    if kept.last and job.method.one_model and job.settings.training.keep == "best":
        # The server chose the model, by the validation errors that sites let it know.
        kept = replace(kept, reason="because the server named no best round")
    folder.finish(essentials(job, judged, rounds=rounds, kept=kept))
