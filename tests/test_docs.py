"""The documentation holds: links lead somewhere, code runs, commands exist, pages are current.

A page says what is executed without showing it to readers:

- Python blocks are executed in order, in one namespace per page and in an empty folder. A block
  that starts with an indented line is a fragment and is not executed.
- Shell blocks under a line `<!-- run -->` are executed, in order, in one empty folder per page,
  with a small model.
- Every other `fuels` command line is parsed: the command and its options must exist.
"""

from __future__ import annotations

import importlib.util
import itertools
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

import click
import pytest
import yaml

from helpers.commands import Fuels

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
WRITTEN = [page for page in PAGES if DOCS / "results" not in page.parents]
ELSEWHERE = [page for page in WRITTEN if page.name != "README.md"]  # test_readme.py runs that
NAMES = {page: page.relative_to(ROOT).as_posix() for page in PAGES}
FENCE = re.compile(
    r"(?P<mark><!-- run -->\n)?^```(?P<language>\w*)\n(?P<code>.*?)^```$", re.M | re.S
)
SMALL = {"run": ("--set", "model.hidden=8", "--no-plots")}  # a smaller model than readers train
LINK = re.compile(r"\[[^\]]*\]\(([^()\s]+(?:\([^)]*\))?)\)")


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    language: str
    code: str
    marked: bool


def blocks(page: Path) -> list[Block]:
    return [
        Block(each["language"], each["code"], each["mark"] is not None)
        for each in FENCE.finditer(page.read_text())
    ]


def prose(page: Path) -> str:
    """A page without its code blocks."""
    return FENCE.sub("", page.read_text())


def having(pages: list[Path], language: str, *, marked: bool = False) -> list[Path]:
    return [
        page
        for page in pages
        if any(b.language == language and b.marked >= marked for b in blocks(page))
    ]


@cache
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# -- links -----------------------------------------------------------------------------------------


@cache
def anchors(page: Path) -> set[str]:
    """The anchors of the headings, which git hosts and MkDocs name alike for plain headings."""
    headings = re.findall(r"^#{1,6} (.+)$", prose(page), re.M)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", each).lower() for each in headings]
    return {re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", each).strip()) for each in plain}


def broken_links(page: Path) -> Iterator[str]:
    for link in LINK.findall(re.sub(r"`[^`\n]*`", "", prose(page))):
        if re.match(r"\w+:", link):  # another site: not for a test to visit
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or not target.is_relative_to(ROOT):
            yield f"{link}: no such file"
        elif anchor and anchor not in anchors(target):
            yield f"{link}: no such heading"


@pytest.mark.parametrize("page", PAGES, ids=NAMES.get)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    assert list(broken_links(page)) == []


def test_a_broken_link_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One\n[a](#one) [b](#two) [c](gone.md) [d](page.md#one) [e](page.md#x)\n")
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    assert list(broken_links(page)) == [
        "#two: no such heading",
        "gone.md: no such file",
        "page.md#x: no such heading",
    ]


def test_the_navigation_names_every_page() -> None:
    """Other pages of results are reached from their own overview."""

    def files(entry: object) -> Iterator[str]:
        if isinstance(entry, str):
            yield entry
        else:
            for each in entry.values() if isinstance(entry, dict) else entry:  # type: ignore[attr-defined]
                yield from files(each)

    named = sorted(files(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    results = {"results/README.md", "results/federation/README.md"}
    pages = [p.relative_to(DOCS).as_posix() for p in WRITTEN if DOCS in p.parents]
    assert named == sorted({*pages} | results)
    linked = set(re.findall(r"\]\(([^)#]+\.md)\)", (DOCS / "index.md").read_text()))
    assert linked == {*named} - {"index.md"}  # the first page links every page as well


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet"]
    done = subprocess.run(
        [*command, "--site-dir", tmp_path / "site"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "search" / "search_index.json").stat().st_size > 10_000


@pytest.mark.parametrize("page", WRITTEN, ids=NAMES.get)
def test_lists_and_tables_follow_an_empty_line(page: Path) -> None:
    """Git hosts do without it, MkDocs does not."""
    lines = prose(page).splitlines()
    for before, line in itertools.pairwise(lines):
        for start in ("- ", "|", "1. "):
            if line.startswith(start):
                assert not before.strip() or before.startswith((start, "  ")), line


# -- what the code says ----------------------------------------------------------------------------


def test_generated_pages_are_current() -> None:
    """`python docs/generate.py`, or `make format`, writes them."""
    stale = [path.name for path, text in generator().pages().items() if path.read_text() != text]
    assert stale == []


def test_contributing_has_a_line_for_every_module() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    for file in (ROOT / "src" / "fuels").rglob("*.py"):
        if file.name != "__init__.py":
            link = f"({file.relative_to(ROOT).as_posix()}): "
            assert re.search(re.escape(link) + r"\S.{10,}", text), link


def lost_names(text: str) -> Iterator[str]:
    """Names "`name` in [file](src/...)" that the file does not define."""
    for name, path in re.findall(r"`(\w+)`[^`|.]*? in\s+\[[^\]]*\]\((src/[^)]*\.py)\)", text):
        if not re.search(rf"^ *(def|class) {name}\b|^{name}\b.*=", (ROOT / path).read_text(), re.M):
            yield f"{name} in {path}"


def test_contributing_finds_what_it_names() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert list(lost_names(text)) == []
    assert list(lost_names(text.replace("`intra_loss`", "`inner_loss`"))) == [
        "inner_loss in src/fuels/paper/losses.py"
    ]


# -- commands --------------------------------------------------------------------------------------


@cache
def commands() -> dict[str, click.Command]:
    return dict(generator().commands())


def command_lines(code: str) -> Iterator[list[str]]:
    """The `fuels` commands in a shell block, as words."""
    for line in code.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words and words[0] == "fuels" and "..." not in words:
            yield words


def refusal(words: list[str], page: Path | None = None, *, mention: bool = False) -> str | None:
    """What the command line would object to; a mention in a sentence may leave values out."""
    name = words[0]
    while len(words) > 1 and f"{name} {words[1]}" in commands():
        words = words[1:]
        name = f"{name} {words[0]}"
    command = commands()[name]
    context = click.Context(command, info_name=name)
    try:
        given, rest, _ = command.make_parser(context).parse_args(words[1:])
    except click.BadOptionUsage:
        return None if mention else f"{name}: an option lacks its value"
    except click.UsageError as error:
        return f"{name}: {error.format_message()}"
    if rest:
        return f"{name}: unexpected {rest[0]}"
    known = (DOCS / "reference" / "settings.md").read_text()
    own = "" if page is None else "".join(b.code for b in blocks(page) if b.language == "python")
    names = [each.name for each in command.params if "--set" in each.opts]
    for setting in (given.get(names[0]) or ()) if names else ():
        key = setting.partition("=")[0]
        if f"`{key} = " not in known and f" {key.removeprefix('options.')}: " not in own:
            return f"{name}: unknown setting {key}"
    return None


@pytest.mark.parametrize("page", PAGES, ids=NAMES.get)
def test_commands_are_accepted(page: Path) -> None:
    shell = [b.code for b in blocks(page) if b.language in ("", "sh")]
    wrong = [refusal(words, page) for code in shell for words in command_lines(code)]
    if page.name != "CHANGELOG.md":  # names what former versions had
        for code in re.findall(r"`(fuels [^`]+)`", prose(page)):
            if "..." not in code and "|" not in code:
                wrong.append(refusal(shlex.split(" ".join(code.split())), page, mention=True))
    assert [each for each in wrong if each] == []


def test_a_wrong_command_is_found() -> None:
    assert refusal(shlex.split("fuels run --data x.csv --set options.rho=2")) is None
    assert "No such option" in str(refusal(shlex.split("fuels run --rouds 3")))
    assert "unexpected" in str(refusal(shlex.split("fuels data descripe x.csv")))
    assert "unknown setting" in str(refusal(shlex.split("fuels run --set options.roh=2")))


def test_every_shell_block_is_marked_as_shell() -> None:
    """A block without a language would escape the test of commands, or look odd in the site."""
    for page in WRITTEN:
        for block in blocks(page):
            assert block.language in ("sh", "python", "text", "toml"), (
                f"{NAMES[page]}: {block.code}"
            )


@pytest.mark.parametrize("page", having(WRITTEN, "sh", marked=True), ids=NAMES.get)
def test_marked_shell_blocks_run(page: Path, fuels: Fuels) -> None:
    for block in blocks(page):
        if block.marked:
            lines = list(command_lines(block.code))
            assert lines
            for words in lines:
                code, out, err = fuels(*words[1:], *SMALL.get(words[1], ()))
                assert code == 0, f"{words}\n{out}\n{err}"


# -- Python ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", having(ELSEWHERE, "python"), ids=NAMES.get)
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    for block in blocks(page):
        if block.language == "python" and not block.code.startswith(" "):
            exec(compile(block.code, NAMES[page], "exec"), module.__dict__)
