"""`fuels export`: personal models as ONNX files."""

from __future__ import annotations

from pathlib import Path

import typer

from fuels.cli import options as opt
from fuels.errors import FuelsError


def export_command(
    run: Path = opt.argument(
        "RUN", "Run folder, its models.safetensors, or a folder written by Forecaster.save."
    ),
    out: Path = opt.option(
        "DIR", "Folder for the files, one for each client.", default=Path("onnx")
    ),
    ids: str | None = opt.option(
        "A,B,...|@FILE",
        "Only these clients: comma-separated ids, or @FILE with one id per line. Default: all.",
    ),
    overwrite: bool = opt.flag("Replace files that exist.", name="--overwrite"),
) -> None:
    """Export personal models as ONNX files, for forecasts without Python.

    A file takes known values in the data's unit and returns the next ones. It includes the scaling
    and the calendar; its metadata list the lags that it reads. It contains the personal model only,
    not the mixture of experts. Needs the extra onnx.

    Example: fuels export first --ids cell-0001 --out onnx
    """
    from fuels.data.files import make_folder
    from fuels.data.panel import find_ids
    from fuels.forecasting.onnx_export import export_onnx, file_names
    from fuels.forecasting.saved_run import SavedRun

    models = SavedRun.load(run).models
    names = file_names(models.ids)
    chosen = models.ids if ids is None else opt.parse_ids(ids) or ()
    clients = [models.ids[i] for i in find_ids(models.ids, chosen, str(run))]
    paths = {client: out / names[client] for client in clients}
    if not overwrite and (there := next((p for p in paths.values() if p.exists()), None)):
        raise FuelsError(f"{there} already exists; choose another folder or give --overwrite")
    make_folder(out)
    for client, path in paths.items():
        export_onnx(models, client, path)
    typer.echo(f"{len(paths)} model{'s' * (len(paths) != 1)} in {out}", err=True)
