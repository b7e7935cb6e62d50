"""One run from settings to results: train, evaluate, and write the run folder."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fuels.config import Engine, Settings, to_dict
from fuels.data.panel import Panel
from fuels.data.windows import Dataset
from fuels.errors import FuelsError
from fuels.evaluation.evaluate import Evaluation, evaluate
from fuels.evaluation.outcome import Outcome
from fuels.evaluation.scores import weighted_percentage
from fuels.evaluation.summary import (
    Kept,
    compared,
    data_facts,
    failures,
    sharing_facts,
    traffic,
    why_last,
)
from fuels.experts.history import history_of
from fuels.experts.input_weights import added_by_inputs
from fuels.experts.run_sums import ReceivedSums
from fuels.federation.loop import Watcher
from fuels.methods.base import MODEL
from fuels.methods.messages import Download
from fuels.report.run.report import write_run_report
from fuels.runs.ahead import look_ahead
from fuels.runs.build import Job, build, fingerprint, kept_parameters
from fuels.runs.frames import errors_frame, forecast_frame, weights_frame
from fuels.runs.protected import protection_of, refuse_spent
from fuels.runs.settings import same_settings
from fuels.storage.checkpoint import save_state
from fuels.storage.models import PersonalModels, load_models, save_models
from fuels.storage.run_folder import RunFolder
from fuels.storage.tables import screened_table, write_table
from fuels.training.runtime import peak_memory_mb
from fuels.version import __version__

Announce = Callable[[str], AbstractContextManager[Any]]
NAMED = 5  # clients that a warning lists by name
SAVING = 0.1  # largest share of the run time spent on checkpoints


def run(
    settings: Settings,
    engine: Engine,
    folder: RunFolder,
    *,
    panel: Panel | None = None,
    resume: bool = False,
    watch: Any = None,
    trackers: Sequence[Watcher] = (),
    plots: bool = True,
    announce: Announce = nullcontext,
) -> Outcome:
    """Train and write the run folder; `resume` continues from its checkpoint.

    `watch(loop)` returns a context manager that yields a watcher: the progress display; `trackers`
    are more watchers.
    `announce(text)` returns one that wraps each longer piece of work after the last round.
    """
    # Data and settings are checked before anything is written: a run that cannot start leaves no
    # files.
    with build(settings, engine, panel) as job:
        if settings.training.warm_start and not (resume and folder.checkpoint.exists()):
            warm_start(job, Path(settings.training.warm_start))
        refuse_spent(job, folder.path)
        warn_nearly_constant(job.dataset)
        # A local run may skip checkpoints. A federation's server may not: its sites rely on them.
        folder.journal.share = SAVING
        with folder.held():
            if resume:
                resume_job(job, folder)
            else:
                folder.begin(job.settings, engine)
            display: AbstractContextManager[Watcher | None] = (
                watch(job.loop) if watch is not None else nullcontext()
            )
            with display as watcher:
                shown = [] if watcher is None else [watcher]
                job.loop.run([folder, *shown, *trackers], saver=_Saver(folder, job))
            return conclude(job, folder, plots=plots, announce=announce)


def warn_nearly_constant(dataset: Dataset) -> None:
    """Warn about clients whose values are nearly constant in the test part."""
    if found := dataset.nearly_constant("test"):
        named = ", ".join(found[:NAMED]) + (" and others" if len(found) > NAMED else "")
        verb, their = ("takes", "its") if len(found) == 1 else ("take", "their")
        warnings.warn(
            f"{named} {verb} part, but {their} errors say little: {their} values hardly change in"
            " the test part",
            stacklevel=2,
        )


class _Saver:
    """Adds the data's fingerprint and the settings to each checkpoint."""

    asks_writers = True

    def __init__(self, folder: RunFolder, job: Job) -> None:
        self.folder, self.origin = folder, origin(job)

    def save(self, done: Any, arrays: Any, facts: Any) -> None:
        self.folder.save(done, arrays, {**facts, **self.origin})


def origin(job: Job) -> dict[str, Any]:
    """The facts that must be unchanged when a run resumes."""
    return {"data": fingerprint(job.dataset), "settings": to_dict(job.settings)}


def resume_job(job: Job, folder: RunFolder) -> None:
    """Restore a job from its folder's checkpoint."""
    folder.refuse_finished()  # checked again: another process may just have finished the run
    restored = folder.restore()
    if restored is None:
        return
    facts = restored[1]
    same = {
        "data": facts.get("data") == fingerprint(job.dataset),
        "settings": same_settings(facts.get("settings", {}), job.settings),
    }
    for what, unchanged in same.items():
        if not unchanged:
            raise FuelsError(
                f"{folder.path}: the {what} have changed since this run was interrupted, so it"
                " cannot be resumed; delete the folder or choose another"
            )
    job.loop.load(*restored)


def warm_start(job: Job, source: Path) -> None:
    """Start from an earlier run's models: each client from its own, newcomers from the mean."""
    path = source / "models.safetensors" if source.is_dir() else source
    models = load_models(path)
    sizes = job.method.facts.network.sizes
    if {name: part.shape[1] for name, part in models.parts.items()} != sizes:
        raise FuelsError(f"{path}: its models differ in size from those of this run")
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


def conclude(
    job: Job, folder: RunFolder, *, plots: bool = True, announce: Announce = nullcontext
) -> Outcome:
    """Evaluate the kept models, compare them with the references, write the results."""
    models = write_models(job, folder, job.loop.final_download())
    save_state(folder.server, job.loop.server.state(), {"clients": list(job.loop.clients)})
    rounds, (first, last) = job.loop.round, job.dataset.split.part("test")
    work = ["weighing the experts"] if job.settings.mixture.on else []
    if job.dataset.target[:, first:last].any():
        work.append("comparing with the references")
    with (
        announce(", ".join(work)) if work else nullcontext(),
        folder.timed("evaluate at the end", rounds),
    ):
        evaluation = evaluate_job(job, models, folder.path)
    outcome = outcome_of(job, folder, evaluation)
    write_evaluation(job.dataset, folder, evaluation)
    if plots:
        from fuels.report.plots import write_plots  # matplotlib is slow to import

        with announce("drawing the plots"), folder.timed("plots", rounds):
            write_plots(outcome, folder.plots)
        with announce("looking ahead and writing the report"), folder.timed("report", rounds):
            write_ahead(job, folder, models, evaluation)
            write_run_report(folder.path, outcome.summary)
    folder.finish(outcome.summary)
    return outcome


def write_ahead(job: Job, folder: RunFolder, models: PersonalModels, found: Evaluation) -> None:
    """Write the forecasts beyond the data, which the report shows."""
    try:
        frame = look_ahead(job.settings, models, found.ensemble, job.dataset.panel)
    except FuelsError as error:  # the run has its results without them
        warnings.warn(f"the report has no forecasts beyond the data: {error}", stacklevel=2)
        return
    write_table(frame, folder.ahead)


def evaluate_job(
    job: Job,
    models: PersonalModels,
    folder: Path | None = None,
    received: ReceivedSums | None = None,
) -> Evaluation:
    """Forecast the test part with a job's models, and score them and the references.

    `folder` is that of the run, where the privacy ledger is. `received`: at a site of a federation,
    the sums that its experts use.
    """
    return evaluate(
        job.dataset,
        models,
        partial(personal_forecasts, job, models),
        title=job.method.title,
        chosen=job.settings.mixture,
        sharing=job.settings.sharing,
        seed=job.settings.seed,
        protection=protection_of(job, folder),
        received=received,
    )


def personal_forecasts(job: Job, models: PersonalModels) -> NDArray[Any]:
    """One-step forecasts of the test part by the personal models, [client, step]."""
    made, (first, last) = job.site.forecast(models.parts, "test"), job.dataset.split.part("test")
    if models.inputs is None:
        return made
    return made + added_by_inputs(models.inputs, history_of(job.dataset), 1, first, last)


def write_models(job: Job, folder: RunFolder, download: Download) -> PersonalModels:
    """Write the kept models of the job's clients, given what the server sends at the end."""
    models = kept_parameters(job, download)
    save_models(folder.models, models)
    return models


def write_evaluation(dataset: Dataset, folder: RunFolder, evaluation: Evaluation) -> None:
    """Write forecasts, all errors, coverage, weights, the mixture, and the clients' values."""
    folder.remember(dataset.panel)
    for forecast in list(evaluation.forecasts.values())[:1]:
        bands = None if evaluation.mixture is None else evaluation.mixture.bands
        frame = forecast_frame(dataset, forecast, bands)
        if evaluation.mixture is not None:
            frame = evaluation.mixture.intervals.limits.confined_table(frame)
        write_table(frame, folder.forecasts)
    if evaluation.scores:
        write_table(errors_frame(dataset, evaluation.scores), folder.errors)
    if evaluation.mixture is not None:
        write_table(weights_frame(dataset, evaluation.mixture), folder.weights)
        write_table(evaluation.mixture.intervals.frame(dataset.ids), folder.coverage)
    if evaluation.ensemble is not None:
        evaluation.ensemble.save(folder.mixture)
    if dataset.screened is not None and dataset.screened.implausible.any():
        write_table(screened_table(dataset.screened), folder.implausible)


def outcome_of(job: Job, folder: RunFolder, evaluation: Evaluation) -> Outcome:
    """Everything that the report needs."""
    return Outcome(
        title=job.method.title,
        settings=job.settings,
        dataset=job.dataset,
        history=folder.history(),
        forecasts=evaluation.forecasts,
        scores=evaluation.scores,
        summary=summarise(job, folder, evaluation),
        mixture=evaluation.mixture,
        steps_ahead=evaluation.steps_ahead,
    )


def kept_models(job: Job, *, shared_best: bool, untrained: Collection[str] = ()) -> Kept:
    """Which models the clients kept.

    `shared_best`: whether a model shared by all clients is that of the best round.
    `untrained`: clients that never trained; a shared model counts for them as well.
    """
    method, site, every = job.method, job.site, len(job.dataset.ids)
    first, last = job.dataset.split.part("val")
    reason = why_last(job.settings.training.keep, last - first)
    if method.one_model:
        return Kept(best=every) if shared_best else Kept(last=every, reason=reason)
    evaluated = {site.ids[i] for i in np.flatnonzero(site.best_round)} if site.best else set()
    fresh = set() if method.evaluate_after_aggregation else set(untrained) - evaluated
    return Kept(len(evaluated), every - len(evaluated) - len(fresh), len(fresh), reason)


def essentials(job: Job, evaluation: Evaluation, *, rounds: int, kept: Kept) -> dict[str, Any]:
    """The first part of every summary, of a run on one machine or at a site."""
    summary: dict[str, Any] = {
        "method": job.settings.method,
        "title": job.method.title,
        "version": __version__,
        "settings": to_dict(job.settings),
        "data": data_facts(job.dataset),
        "rounds": rounds,
        **kept.summary(),
        "scores": {name: value.means() for name, value in evaluation.scores.items()},
        "wape": {
            name: weighted_percentage(job.dataset, "test", value)
            for name, value in evaluation.scores.items()
        },
        **compared(job.method.title, evaluation.scores),
    }
    if evaluation.mixture is not None:
        summary["mixture"] = evaluation.mixture.summary()
    if evaluation.steps_ahead is not None:
        summary["steps_ahead"] = evaluation.steps_ahead.summary()
    if evaluation.sharing is not None:
        summary["sharing"] = sharing_facts(evaluation.sharing)
    shared = None if evaluation.ensemble is None else evaluation.ensemble.sharing
    if shared is not None and (guarantee := shared.guarantee()):
        summary["privacy"] = guarantee
    return summary


def summarise(job: Job, folder: RunFolder, evaluation: Evaluation) -> dict[str, Any]:
    """All of summary.json."""
    loop, history = job.loop, folder.history()
    kept = kept_models(
        job, shared_best=loop.best_download is not None, untrained=loop.without_upload
    )
    return {
        **essentials(job, evaluation, rounds=loop.round, kept=kept),
        **traffic(history, loop.totals),
        "failures": failures(history),
        **({"excluded": sorted(out)} if (out := loop.refused.excluded) else {}),
        **({"unused_uploads": loop.left_out} if loop.left_out else {}),
        "parameters_per_client": sum(job.method.facts.network.sizes.values()),
        "seconds": folder.seconds(),
        "peak_memory_mb": round(peak_memory_mb(), 1),
    }
