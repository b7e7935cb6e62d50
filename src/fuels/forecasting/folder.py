"""The files from which forecasts are made: of a run folder, or of a folder of Forecaster.save."""

from __future__ import annotations

import shutil
from pathlib import Path

from fuels.errors import FuelsError
from fuels.forecasting.memory import LIVE
from fuels.storage.run_folder import HISTORY, METRICS

MODELS, MIXTURE, LEARNED = "models.safetensors", "mixture.safetensors", "learned.safetensors"
CONFIG, SUMMARY = "config.toml", "summary.json"  # a run writes its summary last
SITE = "site.toml"  # in the folder of a site of a federation
RECENT = "recent.parquet"  # the data of `fit` in a folder that an earlier version saved
SAVED = {MODELS, MIXTURE, RECENT, HISTORY, CONFIG, LIVE}  # written by Forecaster.save


def located(path: Path) -> tuple[Path, Path]:
    """The folder and the file of some models, from either; refuses a run that is not finished."""
    if not path.exists():
        raise FuelsError(f"{path}: no such run")
    if not path.is_dir():
        return path.parent, path
    found, config = path / MODELS, path / CONFIG
    ended = any((path / name).is_file() for name in (SUMMARY, RECENT))
    ended |= (path / HISTORY).is_file() and not (path / METRICS).is_file()
    if found.is_file() and ended:
        return path, found
    if config.is_file():
        again = f"continue it: fuels run --resume {path}"
        raise FuelsError(f"{path}: this run is not finished; {again}")
    if found.is_file():
        raise FuelsError(
            f"{path}: the folder has {MODELS} but no {CONFIG} or {SUMMARY}; to forecast with the"
            f" models only, give {found} and the newest data"
        )
    raise FuelsError(f"{path}: not a finished run, {MODELS} is missing")


def newest_run(path: Path) -> Path:
    """The finished run that a site of a federation wrote last, given the site's folder."""
    if not (path / SITE).is_file():
        return path
    ended = [(file.stat().st_mtime_ns, file.parent) for file in path.glob(f"runs/*/{SUMMARY}")]
    if not ended:
        raise FuelsError(f"{path}: this site has no finished run yet")
    return max(ended)[1]


def clear(folder: Path) -> None:
    """Delete what forecasts from a folder have stored."""
    try:
        (folder / LEARNED).unlink(missing_ok=True)
        if (folder / LIVE).exists():
            shutil.rmtree(folder / LIVE)
    except OSError as error:
        raise FuelsError(f"{folder}: cannot be cleared ({error.strerror})") from None


def check_save_folder(folder: Path, overwrite: bool) -> None:
    """Refuse a folder that Forecaster.save may not write to."""
    if folder.exists() and not folder.is_dir():
        raise FuelsError(f"{folder} is a file; save writes a folder")
    found = {item.name for item in folder.iterdir()} if folder.is_dir() else set()
    if found and not overwrite:
        raise FuelsError(f"{folder} is not empty; choose another folder or give overwrite=True")
    learned = {name for name in found if name.startswith(Path(LEARNED).stem)}
    if strange := sorted(found - SAVED - learned):
        raise FuelsError(
            f"{folder} contains {strange[0]}, which save did not write; choose another folder"
        )
