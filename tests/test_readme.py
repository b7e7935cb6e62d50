"""The README is short, and its first example runs unchanged."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def test_it_has_at_most_120_lines_and_one_picture() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) <= 120 and text.count("![") == 1


def first_example() -> str:
    found = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found is not None
    return found.group(1)


def test_the_first_example_is_short_and_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = first_example()
    assert len(code.strip().splitlines()) < 15
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "FUELS" in printed and "shape: (18, 7)" in printed
    assert (tmp_path / "my-forecaster" / "models.safetensors").exists()
