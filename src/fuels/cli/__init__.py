"""The command line. Commands are thin: they read options, call the library and print.

Heavy imports (torch, matplotlib) happen inside the commands, so that help and completion answer at
once.
"""

from __future__ import annotations

import io
import sys
import warnings

import typer

from fuels.cli.bench import bench_command
from fuels.cli.compare import compare_command
from fuels.cli.cost import cost_command
from fuels.cli.data import data_app
from fuels.cli.experiment import experiment_command
from fuels.cli.federation import federation_app, server_app, site_app
from fuels.cli.forecast import forecast_command
from fuels.cli.options import in_options
from fuels.cli.run import run_command
from fuels.cli.words import equip
from fuels.errors import FuelsError, InterruptedRunError
from fuels.version import __version__

app = typer.Typer(
    name="fuels",
    help=(
        "Learn accurate personal forecasters for many traffic series together, without any owner"
        " showing its data.\n\nStart with [bold]fuels run[/bold]: it trains on an embedded,"
        " synthetic federation in a minute or two."
    ),
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run_command)
app.command("forecast")(forecast_command)
app.command("compare")(compare_command)
app.command("experiment")(experiment_command)
app.command("cost")(cost_command)
app.command("bench")(bench_command)
app.add_typer(data_app, name="data")
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
    """Options that stand before a command."""


def main() -> None:
    """Entry point: an error that is not a bug becomes one line and a non-zero exit."""
    warnings.showwarning = _show_warning
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # an id that the terminal cannot show is no error
            stream.reconfigure(errors="replace")
    try:
        app(prog_name="fuels")
    except FuelsError as error:
        typer.echo(f"fuels: {in_options(str(error), sys.argv[1:])}", err=True)
        sys.exit(130 if isinstance(error, InterruptedRunError) else 1)
    except SystemExit as end:
        if end.code == 130:  # typer turns Ctrl-C into this, without a word
            typer.echo("fuels: interrupted", err=True)
        raise
    except KeyboardInterrupt:
        typer.echo("fuels: interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output is gone (for instance `| head`): nobody is left to tell.
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:
        typer.echo(f"fuels: {error.filename or 'output'}: {error.strerror or error}", err=True)
        sys.exit(1)


def _show_warning(message: object, *_: object, **__: object) -> None:
    typer.echo(f"note: {message}", err=True)
