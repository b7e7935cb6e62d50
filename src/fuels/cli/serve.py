"""`fuels serve`: forecasts of a run over HTTP, and new values as they arrive."""

from __future__ import annotations

import importlib.util
from functools import partial
from pathlib import Path

import typer

from fuels.cli import options as opt
from fuels.errors import FuelsError


def serve_command(
    run: Path = opt.argument("RUN", "Run folder, or a folder written by Forecaster.save."),
    host: str = opt.option(
        "ADDRESS",
        "Address to listen on. One that other machines can reach needs --token-file.",
        default="127.0.0.1",
    ),
    port: int = opt.option(
        "PORT", "Port to listen on; 0: a free one.", default=8000, min=0, max=65535
    ),
    horizon: int = opt.option("STEPS", "Steps ahead to forecast.", default=1, min=1),
    token_file: Path | None = opt.option(
        "FILE", "File with a token that every request must carry (Authorization: Bearer TOKEN)."
    ),
    most_mb: float = opt.option(
        "MB", "Largest body of a POST request, in MB.", name="--most-mb", default=16.0, min=0.001
    ),
    implausible: str | None = opt.IMPLAUSIBLE,
    at_least: str | None = opt.AT_LEAST,
    at_most: str | None = opt.AT_MOST,
    threads: int | None = opt.THREADS,
) -> None:
    """Serve the newest forecasts of a run over HTTP, and take new values as they arrive.

    GET /forecasts, /forecasts/CLIENT, /monitor, /health, /metrics (Prometheus) and /openapi.json;
    POST /values takes JSON or CSV. Values are on disk before a request is answered. Late, revised
    and implausible values are handled as in fuels forecast, which can use the same run meanwhile.
    Needs the extra serve. Runs until SIGTERM or Ctrl-C.

    Example: fuels serve first --horizon 24
    """
    from fuels.config import Engine, merge_engine
    from fuels.training.runtime import set_up
    from fuels.version import not_installed

    if not all(importlib.util.find_spec(name) for name in ("fastapi", "uvicorn")):
        raise FuelsError(not_installed("FastAPI and uvicorn", "serve"))
    from fuels.cli.forecast import adjusted
    from fuels.data.screening import drops_implausible
    from fuels.serving.server import serve

    if implausible is not None:
        drops_implausible(implausible, mixed=True)  # refuses unknown words
    compute = {} if threads is None else {"threads": threads}
    set_up(merge_engine(Engine(), compute, "command line"))
    serve(
        run,
        host=host,
        port=port,
        horizon=horizon,
        token_file=token_file,
        most_bytes=round(most_mb * 1e6),
        say=lambda text: typer.echo(text, err=True),
        adjust=partial(adjusted, implausible=implausible, at_least=at_least, at_most=at_most),
    )
