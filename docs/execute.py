"""Execute the notebooks, each in an empty folder, and store what they show: make notebooks.

python docs/execute.py [NAME ...]
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent / "notebooks"


def execute(path: Path) -> nbformat.NotebookNode:
    """A notebook with its results; a cell that fails is an error."""
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    notebook = nbformat.read(path, 4)
    with tempfile.TemporaryDirectory() as folder:
        resources = {"metadata": {"path": folder}}
        # Without times, a notebook changes only if its results do.
        client = NotebookClient(notebook, timeout=600, resources=resources, record_timing=False)
        return client.execute()


def main() -> None:
    names = sys.argv[1:] or sorted(path.stem for path in FOLDER.glob("*.ipynb"))
    for name in names:
        path = FOLDER / f"{name}.ipynb"
        nbformat.write(execute(path), path)
        print(f"{path.name}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
