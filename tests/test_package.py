"""The wheel and the sdist run where they are installed; nothing names the index's other `fuels`."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from fuels.version import DISTRIBUTION, __version__, not_installed

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
STEM = f"{DISTRIBUTION.replace('-', '_')}-{__version__}"
WHEEL, SDIST = f"{STEM}-py3-none-any.whl", f"{STEM}.tar.gz"
TINY = ("--preset", "paper", "--clients", "3", "--rounds", "2", "--set", "model.hidden=4")
LOOK = """
import sys, fuels, importlib.metadata
print(fuels.__file__, importlib.metadata.version(sys.argv[1]))
"""
LARGEST = 1_000_000  # bytes; the records under docs/ would be many times that


def clean(**more: str) -> dict[str, str]:
    """The environment without what could lead to the code in this checkout."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, **more}


def call(*command: str | Path, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=clean(**environment), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def tracked(*under: str) -> list[str]:
    return call("git", "ls-files", "-z", *under, cwd=ROOT).rstrip("\0").split("\0")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `python -m build` makes: an sdist, and a wheel of what is in the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    options = ("--no-isolation", "--outdir", folder)  # isolation would need a package index
    call(sys.executable, "-m", "build", *options, ROOT, cwd=folder)
    return folder


def new_environment(folder: Path) -> Path:
    """A virtual environment with this one's dependencies, but without this checkout.

    The dependencies come last on its path, and Python ignores the .pth files in such a folder, so
    an editable install is not found through them.
    """
    call(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    (packages,) = folder.glob("lib/python*/site-packages")
    here = {sysconfig.get_path(kind) for kind in ("purelib", "platlib")}
    packages.joinpath("dependencies.pth").write_text("".join(f"{path}\n" for path in here))
    return folder


@pytest.mark.parametrize("name", [WHEEL, SDIST])
def test_it_installs_and_runs_in_another_environment(
    built: Path, tmp_path: Path, name: str
) -> None:
    environment = new_environment(tmp_path / "environment")
    python, fuels = environment / "bin" / "python", environment / "bin" / "fuels"
    offline = ("--no-index", "--no-deps", "--no-build-isolation")
    # --ignore-installed: never touch the environment that the dependencies come from.
    install = ("-m", "pip", "--python", python, "install", "--ignore-installed", *offline)
    call(sys.executable, *install, built / name, cwd=tmp_path)

    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    file, version = call(python, "-c", LOOK, DISTRIBUTION, cwd=elsewhere).split()
    assert Path(file).is_relative_to(environment) and version == __version__
    assert call(fuels, "--version", cwd=elsewhere).split() == ["fuels", __version__]
    # Compiling the kernels takes half a minute, and tests/kernels covers it.
    options = (*TINY, "--no-plots", "--threads", "1", "--out", "run")
    assert "Results" in call(fuels, "run", *options, cwd=elsewhere, NUMBA_DISABLE_JIT="1")
    assert elsewhere.joinpath("run", "summary.json").exists()


def test_the_wheel_holds_every_module_and_asks_for_no_other_fuels(built: Path) -> None:
    with zipfile.ZipFile(built / WHEEL) as wheel:
        names = [name for name in wheel.namelist() if not name.startswith(f"{STEM}.dist-info/")]
        about = email.message_from_bytes(wheel.read(f"{STEM}.dist-info/METADATA"))
    assert sorted(names) == sorted(name.removeprefix("src/") for name in tracked("src"))
    assert about["Name"] == DISTRIBUTION == PROJECT["name"]
    needed = {Requirement(line).name for line in about.get_all("Requires-Dist", [])}
    assert "torch" in needed and "fuels" not in needed


def test_the_sdist_is_small_and_has_no_records(built: Path) -> None:
    assert (built / SDIST).stat().st_size < LARGEST
    with tarfile.open(built / SDIST) as sdist:
        top = {name.split("/")[1] for name in sdist.getnames()}
    assert {"src", "deploy", "constraints.txt", "LICENSE"} <= top
    assert not {"docs", "tests", "benchmarks"} & top


# What would make pip, or a person, fetch the package index's `fuels`, which is not this project.
EXTRAS = "|".join(PROJECT["optional-dependencies"])
ELSEWHERE = re.compile(
    rf"""(?<![\w-])fuels\s*\\*\[\s*(?:{EXTRAS})\b  # the name with an extra
    | \b(?:pip3?|uv)\s(?:[^\n`&|;]*[ \t])?(?:install|add|download)\s  # a command ...
      [^\n`&|;]*(?<![\w./-])fuels(?![\w./-])  # ... that fetches the name
    | \b(?:pipx|uvx)\s+(?:run\s+)?fuels(?![\w-])
    | (?<![\w.-])fuels\s*[=~><]=\s*[\d{{]  # a pin
    """,
    re.VERBOSE,
)


def test_no_file_leads_to_the_other_package() -> None:
    texts = {name: (ROOT / name).read_text(errors="replace") for name in tracked()}
    found = [
        f"{name}: {hit.group()}" for name, text in texts.items() for hit in ELSEWHERE.finditer(text)
    ]
    assert found == []


def test_such_a_file_would_be_found() -> None:
    name = "fuels"
    for text in (
        f"pip install {name}",
        f"/opt/fuels/bin/pip install -U '{name}'",
        f"pip install '{name}[flower]'",
        f"needs {name}\\\\[bench].",
        f"{name}[boosting,calendar]",
        f'"{name}=={{__version__}}"',
        f"{name}>=0.1",
        f"uv add {name}",
        f"pipx run {name}",
    ):
        assert ELSEWHERE.search(text), text
    for text in (not_installed("Ray", "ray"), f"pip install './{WHEEL}[flower]'", f"{name}['mse']"):
        assert not ELSEWHERE.search(text), text


def test_the_docs_name_the_wheel_that_is_built() -> None:
    named = re.findall(
        r"[\w.-]+\.whl", (ROOT / "docs" / "how-to" / "operate-a-federation.md").read_text()
    )
    assert set(named) == {WHEEL}
