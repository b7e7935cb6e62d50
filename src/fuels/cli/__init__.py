"""The command line. Commands are thin: they read options, call the library and print.

Heavy imports (torch, matplotlib) happen inside the commands, so that help and completion are fast.
What the commands themselves need is imported inside `main`, so that Ctrl-C during the imports is
handled as quietly as later.
"""

from __future__ import annotations

import io
import sys
import warnings

from fuels.errors import FuelsError, InterruptedRunError


def main() -> None:
    """Entry point: an error that is not a bug becomes one line and a non-zero exit."""
    _shown.clear()
    warnings.showwarning = _show_warning
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # ids may not fit the terminal's encoding
            stream.reconfigure(errors="replace")
    try:
        from fuels.cli.commands import app

        app(prog_name="fuels")
    except FuelsError as error:
        from fuels.cli.options import in_options

        _say(in_options(str(error), sys.argv[1:]))
        sys.exit(130 if isinstance(error, InterruptedRunError) else 1)
    except SystemExit as end:
        if end.code == 130:  # typer turns Ctrl-C into this, without a message
            _say("interrupted")
        raise
    except KeyboardInterrupt:
        _say("interrupted")
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output has gone (for instance `| head`).
        sys.stderr.close()
        sys.exit(1)
    except OSError as error:
        _say(f"{error.filename or 'output'}: {error.strerror or error}")
        sys.exit(1)
    except (MemoryError, RuntimeError) as error:
        if not _out_of_memory(error):
            raise
        _say(
            "this machine does not have enough memory: use fewer clients (--clients), a smaller"
            " model (--set model.hidden=N) or a shorter span (--from, --to)"
        )
        sys.exit(1)


def _out_of_memory(error: Exception) -> bool:
    """On a CPU, torch has no separate exception for this, only a message."""
    words = ("can't allocate memory", "not enough memory")
    return isinstance(error, MemoryError) or any(word in str(error) for word in words)


def _say(message: str) -> None:
    print(f"fuels: {message}", file=sys.stderr)


_shown: set[str] = set()


def _show_warning(message: object, *_: object, **__: object) -> None:
    """Show each warning once: a study reads its data for every run."""
    if str(message) not in _shown:
        _shown.add(str(message))
        print(f"note: {message}", file=sys.stderr)
