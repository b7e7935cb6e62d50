"""One run from settings to results: train, judge, and leave everything in a run folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from fuels.build import Job, build, fingerprint
from fuels.config import Engine, Settings, to_dict
from fuels.data.panel import Panel
from fuels.data.windows import Dataset
from fuels.errors import FuelsError
from fuels.federation.checkpoint import save_state
from fuels.federation.loop import BYTES, Watcher
from fuels.forecast_table import in_zone, write_table
from fuels.messages import Download
from fuels.methods.base import MODEL
from fuels.models import PersonalModels, load_models, personal_models, save_models
from fuels.references import references
from fuels.report.folder import RunFolder
from fuels.report.outcome import Outcome
from fuels.runtime import peak_memory_mb
from fuels.scores import Scores, score, share_better
from fuels.version import __version__


def run(
    settings: Settings,
    engine: Engine,
    folder: RunFolder,
    *,
    panel: Panel | None = None,
    resume: bool = False,
    watch: Any = None,
    plots: bool = True,
) -> Outcome:
    """Train and write the run folder; `resume` goes on from its checkpoint.

    `watch(loop)` gives a context manager whose value is a watcher: the progress display.
    """
    # The data are read and everything is checked before the folder is touched: a run that cannot
    # begin leaves nothing behind.
    with build(settings, engine, panel) as job:
        if settings.training.warm_start and not (resume and folder.checkpoint.exists()):
            warm_start(job, Path(settings.training.warm_start))
        with folder.held():
            if resume:
                go_on(job, folder)
            else:
                folder.begin(job.settings, engine)
            display: AbstractContextManager[Watcher | None] = (
                watch(job.loop) if watch is not None else nullcontext()
            )
            with display as watcher:
                watchers: Sequence[Watcher] = [folder] if watcher is None else [folder, watcher]
                job.loop.run(watchers, saver=_Saver(folder, job))
            return conclude(job, folder, plots=plots)


class _Saver:
    """Adds to each checkpoint which data and settings it belongs to."""

    def __init__(self, folder: RunFolder, job: Job) -> None:
        self.folder, self.origin = folder, origin(job)

    def save(self, done: Any, arrays: Any, facts: Any) -> None:
        self.folder.save(done, arrays, {**facts, **self.origin})


def origin(job: Job) -> dict[str, Any]:
    """What a checkpoint must agree with to be continued."""
    return {"data": fingerprint(job.dataset), "settings": to_dict(job.settings)}


def go_on(job: Job, folder: RunFolder) -> None:
    """Bring a job to where its folder left off."""
    folder.refuse_finished()  # again: another process may just have ended it
    restored = folder.restore()
    if restored is None:
        return
    now = origin(job)
    for what in ("data", "settings"):
        if restored[1].get(what) != json.loads(json.dumps(now[what])):
            raise FuelsError(
                f"{folder.path}: the {what} have changed since this run was interrupted"
            )
    job.loop.load(*restored)


def warm_start(job: Job, source: Path) -> None:
    """Start from an earlier run's models: each client from its own, newcomers from the mean."""
    path = source / "models.safetensors" if source.is_dir() else source
    models = load_models(path)
    sizes = job.method.facts.network.sizes
    if {name: part.shape[1] for name, part in models.parts.items()} != sizes:
        raise FuelsError(f"{path}: its models are of another size than this run's")
    row = {client: i for i, client in enumerate(models.ids)}
    site = job.site
    for name in MODEL:
        mean = models.parts[name].mean(0)
        if name in site.parts:
            for i, client in enumerate(site.ids):
                own = models.parts[name][row[client]] if client in row else mean
                site.parts[name][i] = own
        shared = getattr(job.loop.server, "parts", {})
        if name in shared:
            shared[name] = mean.numpy()
    job.sites.load(site.state())


def conclude(job: Job, folder: RunFolder, *, plots: bool = True) -> Outcome:
    """Judge the kept models, compare with the references, write the results."""
    models = write_models(job, folder, job.loop.final_download())
    save_state(folder.server, job.loop.server.state(), {"clients": list(job.loop.clients)})
    outcome = judge(job, folder, models)
    write_forecasts(job.dataset, folder, outcome.forecasts)
    if plots:
        from fuels.report.plots import write_plots  # matplotlib is slow to import

        write_plots(outcome, folder.plots)
    folder.finish(outcome.summary)
    return outcome


def write_models(job: Job, folder: RunFolder, download: Download) -> PersonalModels:
    """Write the kept models of the job's clients, given what the server sends at the end."""
    model = job.settings.model
    extra = {n: p.cpu().numpy() for n, p in job.site.parts.items() if n not in MODEL}
    models = personal_models(
        job.dataset,
        job.site.models(download),
        extra,
        encoder=model.encoder,
        hidden=model.hidden,
        method=job.settings.method,
    )
    save_models(folder.models, models)
    return models


def forecasts_of(job: Job, models: PersonalModels) -> dict[str, NDArray[Any]]:
    """Forecasts of the test part, the method's first, then the references'; none without values."""
    dataset = job.dataset
    first, last = dataset.split.part("test")
    if not dataset.target[:, first:last].any():
        return {}
    own = {job.method.title: job.site.forecast(models.parts, "test")}
    return own | references(dataset, "test")


def write_forecasts(
    dataset: Dataset, folder: RunFolder, forecasts: Mapping[str, NDArray[Any]]
) -> None:
    """Write the method's own forecasts, the first of those given."""
    for forecast in list(forecasts.values())[:1]:
        write_table(forecast_frame(dataset, forecast), folder.forecasts)


def judge(job: Job, folder: RunFolder, models: PersonalModels) -> Outcome:
    """Forecasts and scores of the test part, method and references, and the summary."""
    dataset = job.dataset
    forecasts = forecasts_of(job, models)
    scores = {name: score(dataset, "test", value) for name, value in forecasts.items()}
    summary = summarise(job, folder, scores)
    return Outcome(
        title=job.method.title,
        settings=job.settings,
        dataset=dataset,
        history=folder.history(),
        forecasts=forecasts,
        scores=scores,
        summary=summary,
    )


def essentials(
    job: Job, scores: Mapping[str, Scores], *, rounds: int, best: bool
) -> dict[str, Any]:
    """What every summary says first, of a run on one machine or at a site."""
    dataset = job.dataset
    return {
        "method": job.settings.method,
        "version": __version__,
        "settings": to_dict(job.settings),
        "data": {
            "name": dataset.panel.name,
            "synthetic": dataset.panel.synthetic,
            "unit": dataset.panel.unit,
            "clients": len(dataset.ids),
            "left_out": dataset.left_out,
            "values_filled": dataset.filled,
            "notes": list(dataset.panel.notes),
        },
        "rounds": rounds,
        "kept_model": "best on the validation part" if best else "last",
        "scores": {name: value.means() for name, value in scores.items()},
    }


def summarise(job: Job, folder: RunFolder, scores: dict[str, Scores]) -> dict[str, Any]:
    loop, title = job.loop, job.method.title
    totals, history = loop.totals, folder.history()
    best = job.settings.training.keep == "best" and not np.isnan(loop.val_mse).all()
    others = {name: value for name, value in scores.items() if name != title}
    summary = essentials(job, scores, rounds=loop.round, best=best) | {
        "per_client_and_round": {
            "numbers_up": history[-1]["numbers_up"] if history else 0,
            "numbers_down": history[-1]["numbers_down"] if history else 0,
            "bytes_up": BYTES * history[-1]["numbers_up"] if history else 0,
            "bytes_down": BYTES * history[-1]["numbers_down"] if history else 0,
        },
        "totals": {
            "numbers_up": totals["numbers_up"],
            "numbers_down": totals["numbers_down"],
            "bytes_up": BYTES * totals["numbers_up"],
            "bytes_down": BYTES * totals["numbers_down"],
        },
        "parameters_per_client": sum(job.method.facts.network.sizes.values()),
        "seconds": folder.seconds(),
        "peak_memory_mb": round(peak_memory_mb(), 1),
    }
    if others:
        reference = min(others, key=lambda name: others[name].means()["mse"])
        summary["best_reference"] = reference
        summary["share_better_than_best_reference"] = share_better(scores[title], others[reference])
    return summary


def forecast_frame(dataset: Dataset, forecast: NDArray[Any], part: str = "test") -> pl.DataFrame:
    """client, time, actual, forecast of a part, in the data's unit; times in the data's zone."""
    actual = dataset.values(part)
    first, last = dataset.split.part(part)
    predicted = forecast * dataset.std[:, None] + dataset.mean[:, None]
    predicted = np.where(dataset.window[:, first:last], predicted, np.nan)
    times = dataset.times(part)
    clients, steps = actual.shape
    frame = pl.DataFrame(
        {
            "client": np.repeat(np.array(dataset.ids), steps),
            "time": np.tile(times.astype("datetime64[ms]"), clients),
            "actual": actual.ravel(),
            "forecast": predicted.ravel(),
        }
    ).with_columns(pl.col("actual", "forecast").fill_nan(None))
    return in_zone(frame, dataset.panel.timezone)
