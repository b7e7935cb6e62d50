"""The notebooks run from top to bottom, and what they show is small."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"
NAMES = ("your-own-data", "newcomer", "federation")
SHORT = {"clients=8, days=28": "clients=3, days=16", "rounds=10": "rounds=1", "h=24": "h=2"}
MOST_BYTES = 150_000


def executed(
    notebook: nbformat.NotebookNode, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> nbformat.NotebookNode:
    """A notebook executed in a folder; a cell that fails is an error."""
    path = [str(Path(sys.executable).parent), os.environ["PATH"]]  # for `!fuels`
    monkeypatch.setenv("PATH", os.pathsep.join(path))
    resources = {"metadata": {"path": str(folder)}}
    return NotebookClient(notebook, timeout=300, resources=resources).execute()


def read(name: str) -> nbformat.NotebookNode:
    return nbformat.read(FOLDER / f"{name}.ipynb", 4)


def outputs(notebook: nbformat.NotebookNode) -> list[nbformat.NotebookNode]:
    return [output for cell in notebook.cells for output in cell.get("outputs", [])]


def pictures(notebook: nbformat.NotebookNode) -> int:
    return sum("image/png" in output.get("data", {}) for output in outputs(notebook))


def test_the_page_about_notebooks_names_all() -> None:
    page = (FOLDER.parent / "tutorials" / "notebooks.md").read_text()
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == sorted(NAMES)
    assert all(f"(../notebooks/{name}.ipynb)" in page for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_stored_with_its_results(name: str) -> None:
    notebook = read(name)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert pictures(notebook) == 1
    assert (FOLDER / f"{name}.ipynb").stat().st_size < MOST_BYTES
    text = (FOLDER / f"{name}.ipynb").read_text()
    assert all(word not in text for word in ("/home/", "/root", "/tmp", "Traceback"))


def test_the_first_notebook_runs_in_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = read("your-own-data")
    for old, new in SHORT.items():
        assert sum(old in cell.source for cell in notebook.cells) > 0, old
        for cell in notebook.cells:
            cell.source = cell.source.replace(old, new)
    shown = executed(notebook, tmp_path, monkeypatch)
    assert pictures(shown) == 1 and (tmp_path / "my-forecaster" / "models.safetensors").exists()


@pytest.mark.nightly
@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And shows the same number of results as the stored one."""
    stored = read(name)
    shown = executed(read(name), tmp_path, monkeypatch)
    assert pictures(shown) == pictures(stored)
    kinds = [[output.output_type for output in outputs(each)] for each in (stored, shown)]
    assert kinds[0] == kinds[1]
