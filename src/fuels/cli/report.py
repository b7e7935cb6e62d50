"""`fuels report`: the page about a run, made again from its folder."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from fuels.cli import options as opt
from fuels.errors import FuelsError

if TYPE_CHECKING:
    from fuels.storage.run_folder import RunFolder


def report_command(
    run: Path = opt.argument(
        "RUN", "Folder of a finished run, of a site's run or of a server's run."
    ),
) -> None:
    """Write report.html into a run folder: everything about the run on one page.

    fuels run writes it at the end. Use this command for runs of earlier versions, for runs with
    --no-plots, at a site of a federation, where it adds the forecasts beyond the data, and to add
    what fuels monitor says about the forecasts since the run. The page needs no network. It
    contains actual values: share it only with people who may see them.

    Example: fuels report first
    """
    from fuels.report.page.shell import NAME
    from fuels.storage.run_folder import RunFolder

    folder = RunFolder(run)
    if not folder.finished:
        if (run / "compare.json").is_file() or list(run.glob("*.md")):
            raise FuelsError(
                f"{run}: the folder of a study, not of a run; to write its {NAME} again, run its"
                " command again: finished runs are reused"
            )
        why = "this run is not finished" if folder.config.is_file() else "no run is here"
        raise FuelsError(f"{run}: {why}, summary.json is missing")
    summary = folder.read_summary()
    if "scores" in summary:
        from fuels.report.run.report import write_run_report

        if not folder.ahead.exists():
            add_ahead(folder)
        typer.echo(write_run_report(run, summary, since_the_run(run)))
        return
    from fuels.report.federation import write_federation_report

    typer.echo(write_federation_report(run, summary))


def since_the_run(run: Path) -> dict[str, Any] | None:
    """What `fuels monitor` finds; None if the run has not forecast anything yet."""
    from fuels.forecasting.issued import read_issued
    from fuels.monitoring.monitor import monitor

    try:
        return None if read_issued(run) is None else monitor(run)
    except FuelsError as error:
        warnings.warn(f"the report does not say how the forecasts did since: {error}", stacklevel=2)
        return None


def add_ahead(folder: RunFolder) -> None:
    """Write ahead.parquet if the run's data can still be read."""
    from fuels.config import Engine
    from fuels.forecasting.saved_run import SavedRun
    from fuels.report.display import working
    from fuels.runs.ahead import look_ahead
    from fuels.storage.tables import write_table
    from fuels.training.runtime import set_up

    set_up(Engine())
    try:
        with working()("looking ahead"):
            saved = SavedRun.load(folder.path, forget=True)  # as the run left it
            panel = saved.training_data().select(saved.models.ids)
            table = look_ahead(saved.settings, saved.models, saved.ensemble, panel)
    except FuelsError as error:
        warnings.warn(f"the report has no forecasts beyond the data: {error}", stacklevel=2)
        return
    write_table(table, folder.ahead)
