"""Folders and text files of a study; a file is written completely or not at all."""

from __future__ import annotations

from pathlib import Path

from fuels.data.files import make_folder, writing


def write_text(path: Path, text: str) -> Path:
    make_folder(path.parent)
    with writing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return path


def need_writable(*folders: Path | None) -> None:
    """Refuse folders that cannot be written to before hours are spent on their content."""
    for folder in folders:
        if folder is not None:
            write_text(folder / ".fuels-can-write", "").unlink()
