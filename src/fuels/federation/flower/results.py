"""What a site has when training is over: its models, its forecasts and its errors.

The same files as in the folder of a run on one machine, so that `fuels forecast` works on it.
"""

from __future__ import annotations

from pathlib import Path

from fuels.build import Job
from fuels.config import Engine, to_dict, write_toml
from fuels.forecast_table import write_table
from fuels.messages import Download
from fuels.methods.base import MODEL
from fuels.models import personal_models, save_models
from fuels.references import references
from fuels.report.folder import RunFolder
from fuels.run import forecast_frame
from fuels.scores import score
from fuels.version import __version__


def write_results(job: Job, path: Path, download: Download, rounds: int, engine: Engine) -> None:
    """models.safetensors, forecasts.parquet, config.toml and summary.json in the run's folder."""
    folder, site, dataset = RunFolder(path), job.site, job.dataset
    model = job.settings.model
    own = {name: part.cpu().numpy() for name, part in site.parts.items() if name not in MODEL}
    models = personal_models(
        dataset,
        site.models(download),
        own,
        encoder=model.encoder,
        hidden=model.hidden,
        method=job.settings.method,
    )
    save_models(folder.models, models)
    write_toml(folder.config, job.settings, engine)
    scores = {}
    first, last = dataset.split.part("test")
    if dataset.target[:, first:last].any():
        forecasts = {job.method.title: site.forecast(models.parts, "test")}
        write_table(forecast_frame(dataset, forecasts[job.method.title]), folder.forecasts)
        forecasts |= references(dataset, "test")
        scores = {name: score(dataset, "test", value).means() for name, value in forecasts.items()}
    folder.finish(
        {
            "method": job.settings.method,
            "version": __version__,
            "settings": to_dict(job.settings),
            "data": {"name": dataset.panel.name, "clients": len(dataset.ids)},
            "rounds": rounds,
            "kept_model": "best on the validation part" if site.best else "last",
            "scores": scores,
        }
    )
