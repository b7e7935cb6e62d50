"""Rules about the shape of the code that no other tool checks: layout, sizes, private names."""

from __future__ import annotations

import ast
import configparser
import functools
import io
import re
import statistics
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from fuels.methods.registry import EXTENSIONS, METHODS

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "fuels"
TESTS = ROOT / "tests"
MOST_LINES = 400
MOST_MODULES = 5
LARGEST_METHOD = 60  # lines of code of the median method
PATH_TO_PRIVATE = re.compile(r"fuels(?:\.[A-Za-z]\w*)+\._[A-Za-z]\w*")  # as monkeypatch takes it


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name != "_"


def test_few_modules_are_at_the_top() -> None:
    modules = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert len(modules) <= MOST_MODULES, sorted(modules)


def test_files_are_short() -> None:
    paths = (*PACKAGE.rglob("*.py"), *TESTS.rglob("*.py"))
    sizes = {path: len(path.read_text().splitlines()) for path in paths}
    long = {str(path.relative_to(ROOT)): n for path, n in sizes.items() if n > MOST_LINES}
    assert len(sizes) > 100 and long == {}


def test_every_package_has_its_layer() -> None:
    rules = configparser.ConfigParser()
    rules.read(ROOT / ".importlinter")
    contract = rules["importlinter:contract:layers"]
    found = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    found |= {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert sorted(contract["layers"].split()) == sorted(found)
    assert contract["exhaustive"] == "True"


def test_every_package_has_its_tests() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert packages - {path.parent.name for path in TESTS.glob("*/test_*.py")} == set()


def code_lines(text: str) -> int:
    """Lines that are not blank, a comment or a docstring."""
    skipped = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skipped and token.string:
            found |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            found -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(found)


def test_most_methods_are_short() -> None:
    folder = PACKAGE / "methods"
    names = [name.replace("-", "_") for name in METHODS | EXTENSIONS]
    sizes = {name: code_lines((folder / f"{name}.py").read_text()) for name in names}
    assert statistics.median(sizes.values()) < LARGEST_METHOD, sizes
    assert code_lines('"""Doc."""\n\n# why\nx = f(  # here\n    1,\n)\n') == 3


def test_names_of_test_files_are_unique() -> None:
    """pytest imports them by their names, and refuses a second file with the same one."""
    names = [path.name for path in TESTS.rglob("test_*.py")]
    assert {name for name in names if names.count(name) > 1} == set()


# -- private names -----------------------------------------------------------------------------


def part_of(module: str) -> str:
    """`federation` of fuels.federation.flower.server."""
    return module.split(".")[1] if "." in module else ""


@functools.cache
def defined_names() -> dict[str, set[str]]:
    """The parts of fuels that define each private name, as a function, class or attribute."""
    parts: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        part = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                parts.setdefault(node.name, set()).add(part)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                parts.setdefault(node.id, set()).add(part)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                parts.setdefault(node.attr, set()).add(part)
    return {name: where for name, where in parts.items() if is_private(name)}


def imported(tree: ast.AST) -> dict[str, str]:
    """What each imported name refers to, as a dotted path."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            names |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
        elif isinstance(node, ast.Import):
            names |= {a.asname: a.name for a in node.names if a.asname}
            names |= {
                a.name.split(".")[0]: a.name.split(".")[0] for a in node.names if not a.asname
            }
    return names


def private_names(text: str, defined: dict[str, set[str]]) -> Iterator[tuple[str, set[str]]]:
    """Private names of fuels that a test uses, each with the parts of fuels it may belong to.

    A name that is imported, or reached through an imported module or class, belongs to that module.
    The type of other objects is unknown, so any part that defines such a name will do.
    """
    tree = ast.parse(text)
    names = imported(tree)

    def owner(value: ast.expr) -> str | None:
        """The dotted path of an expression of imported names."""
        if isinstance(value, ast.Attribute):
            left = owner(value.value)
            return left and f"{left}.{value.attr}"
        return names.get(value.id) if isinstance(value, ast.Name) else None

    def reached(value: ast.expr, name: str) -> Iterator[tuple[str, set[str]]]:
        path = owner(value)
        own = isinstance(value, ast.Name) and value.id in ("self", "cls")
        if path is not None and path.split(".")[0] == "fuels":
            yield f"{path}.{name}", {part_of(path)}
        elif path is None and not own and name in defined:
            yield name, defined[name]

    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "fuels":
            for alias in node.names:
                if is_private(alias.name):
                    yield f"{node.module}.{alias.name}", {part_of(str(node.module))}
        elif isinstance(node, ast.Attribute) and is_private(node.attr):
            yield from reached(node.value, node.attr)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            for path in PATH_TO_PRIVATE.findall(node.value):
                yield path, {part_of(path)}
        elif isinstance(node, ast.Call) and len(node.args) > 1:
            target, name = node.args[:2]  # setattr(module, "_name", ...)
            literal = isinstance(name, ast.Constant) and str(name.value)
            if literal and is_private(literal) and isinstance(target, ast.Name | ast.Attribute):
                yield from reached(target, literal)


def part_under_test(path: Path) -> str:
    """`federation` of tests/federation/flower/test_x.py, `config` of tests/test_config.py."""
    inside = path.relative_to(TESTS)
    return inside.parts[0] if len(inside.parts) > 1 else inside.stem.removeprefix("test_")


@pytest.mark.parametrize(
    "path", sorted(TESTS.rglob("*.py")), ids=lambda path: str(path.relative_to(TESTS))
)
def test_private_names_are_used_only_where_they_are_tested(path: Path) -> None:
    part = part_under_test(path)
    found = private_names(path.read_text(), defined_names())
    assert [name for name, parts in found if part not in parts] == []


PRIVATE = "_check"  # apart from its path, which the test above would find in this file


@pytest.mark.parametrize(
    "text",
    [
        "from fuels.data.panel import _check",
        "import fuels.data.panel as p; p._check()",
        "from fuels.data import panel; panel._check()",
        f"import fuels.data.panel; fuels.data.panel.{PRIVATE}()",
        "from fuels.data.panel import Panel; Panel._check()",
        f"patch.setattr('fuels.data.panel.{PRIVATE}', None)",
        "from fuels.data import panel; patch.setattr(panel, '_check', None)",
        "thing._check()",
        "make().field._check",
    ],
)
def test_a_private_name_is_found(text: str) -> None:
    assert [parts for _, parts in private_names(text, {"_check": {"data"}})] == [{"data"}]


@pytest.mark.parametrize(
    "text",
    [
        "import os; os._exit(0)",
        "from numba.core import caching; caching.CacheImpl._locator_classes = []",
        "self._check",
        "for _ in range(3): pass",
        "thing.__dict__",
        "from fuels.data.panel import Panel as _Panel",
    ],
)
def test_other_names_are_not(text: str) -> None:
    assert list(private_names(text, {"_check": {"data"}, "_exit": {"data"}})) == []
