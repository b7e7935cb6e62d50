"""All commands under one name."""

from __future__ import annotations

import typer

from fuels.cli.audit import audit_command
from fuels.cli.backtest import backtest_command
from fuels.cli.bench import bench_command
from fuels.cli.command import equip
from fuels.cli.compare import compare_command
from fuels.cli.cost import cost_command
from fuels.cli.data import data_app
from fuels.cli.experiment import experiment_command
from fuels.cli.export import export_command
from fuels.cli.federation import federation_app
from fuels.cli.forecast import forecast_command
from fuels.cli.monitor import monitor_command
from fuels.cli.parties import server_app, site_app
from fuels.cli.privacy import privacy_app
from fuels.cli.report import report_command
from fuels.cli.retrain import retrain_command
from fuels.cli.run import run_command
from fuels.cli.serve import serve_command
from fuels.version import __version__

app = typer.Typer(
    name="fuels",
    help=(
        "Train accurate personal forecasters for many traffic series together, while each owner"
        " keeps its data private.\n\nStart with [bold]fuels run[/bold]: it trains on built-in"
        " synthetic data in a minute or two."
    ),
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    *(run_command, forecast_command, serve_command, monitor_command, retrain_command),
    *(backtest_command, report_command, compare_command, experiment_command, audit_command),
    *(export_command, cost_command, bench_command),
):
    app.command(command.__name__.removesuffix("_command"))(command)
app.add_typer(data_app, name="data")
app.add_typer(privacy_app, name="privacy")
app.add_typer(federation_app, name="federation")
app.add_typer(server_app, name="server")
app.add_typer(site_app, name="site")
equip(app)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"fuels {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    """Options that precede a command."""
