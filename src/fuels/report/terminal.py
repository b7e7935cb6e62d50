"""Tables and notes on a terminal, where no figure and no name is ever cut.

A table that is too wide first breaks its headings and free texts into several lines; if that does
not do, its columns are shown in several tables below each other, each with the first column.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass
from itertools import count

from rich.cells import cell_len, chop_cells
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

GAP = "  "
ENDLESS = 100_000  # columns: a line that is longer than any
SHORT = 20  # a text up to this long stays in one line


def say(console: Console, text: str, style: str = "") -> None:
    """A sentence: wrapped to the width of a terminal, one line where a program may read it."""
    console.print(
        Text(text), style=style or None, highlight=False, soft_wrap=not console.is_terminal
    )


def plain(shown: RenderableType) -> str:
    """What would be shown on a terminal, without colours, wraps and trailing blanks."""
    file = io.StringIO()
    Console(file=file, width=ENDLESS).print(shown)
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())


@dataclass(frozen=True)
class Strip:
    """A column as it is shown: heading, unit, its cells, and the rows to be praised."""

    name: str
    unit: str
    cells: Sequence[str]
    numeric: bool  # numbers, padded so that their decimal points stand in one line
    best: Set[int]

    @property
    def full(self) -> int:
        """The width that needs no break."""
        return _widest([self.name, self.unit, *self.cells])

    def least(self, room: int) -> int:
        """The width below which a number or a word would have to break."""
        heading = min(_widest([*_pieces(self.name), *_pieces(self.unit)]), room // 2)
        if self.numeric:
            return max(heading, _widest(self.cells))
        words = _widest(piece for cell in self.cells for piece in _pieces(cell))
        return max(heading, min(max(words, min(_widest(self.cells), SHORT)), room // 2))

    def enough(self, height: int, room: int) -> int:
        """The least width at which heading and unit take at most so many lines each."""
        sizes = range(self.least(room), self.full)
        heads = (self.name, self.unit)
        fits = (w for w in sizes if all(len(wrapped(text, w)) <= height for text in heads))
        return next(fits, self.full)

    def lines(self, text: str, width: int) -> list[str]:
        """A text within `width`, each line of exactly that width."""
        pad = [(line, " " * (width - cell_len(line))) for line in wrapped(text, width)]
        return [blank + line if self.numeric else line + blank for line, blank in pad]


class Fitted:
    """A table that looks at the width of the console when it is printed."""

    def __init__(self, strips: Sequence[Strip]) -> None:
        self.strips = strips

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = options.max_width
        for place, strips in enumerate(bands(self.strips, room)):
            if place:
                yield ""
            yield Text("\n").join(_lines(strips, widths(strips, room)))


def bands(strips: Sequence[Strip], room: int) -> list[list[Strip]]:
    """Columns that fit beside each other, the first one always with them."""
    first, *others = strips
    found, used = [[first]], first.least(room)
    for strip in others:
        more = len(GAP) + strip.least(room)
        if used + more > room and len(found[-1]) > 1:
            found.append([first])
            used = first.least(room)
        found[-1].append(strip)
        used += more
    return found


def widths(strips: Sequence[Strip], room: int) -> list[int]:
    """As much for each column as makes the headings low, and what is left for the texts."""
    least, full = [strip.least(room) for strip in strips], [strip.full for strip in strips]
    free = room - len(GAP) * (len(strips) - 1)
    tries = ([strip.enough(height, room) for strip in strips] for height in count(1))
    found = next(sizes for sizes in tries if sum(sizes) <= free or sizes == least)
    texts = [i for i, strip in enumerate(strips) if not strip.numeric]
    while sum(found) < free and any(found[i] < full[i] for i in texts):
        found[max(texts, key=lambda i: full[i] / max(found[i], 1))] += 1
    return found


def wrapped(text: str, width: int) -> list[str]:
    """A text in lines of at most `width`, broken after blanks and commas, and words where it must.

    A number that is padded to stand in its column fits, and stays as it is.
    """
    if cell_len(text) <= width:
        return [text]
    lines = [""]
    for piece in _pieces(text):
        for part in chop_cells(piece, width) if cell_len(piece) > width else [piece]:
            if cell_len((lines[-1] + part).rstrip()) > width:
                lines.append("")
            lines[-1] += part
    return [line.rstrip() for line in lines]


def _pieces(text: str) -> list[str]:
    """What must not be broken: words, and the parts of a list between commas."""
    return re.findall(r"[^\s,]*,*\s*", text)[:-1]


def _widest(texts: Iterable[str]) -> int:
    return max((cell_len(text.rstrip()) for text in texts), default=0)


def _lines(strips: Sequence[Strip], sizes: Sequence[int]) -> list[Text]:
    """Headings over a rule over the rows, as lines with their styles."""
    both = list(zip(strips, sizes, strict=True))
    bold = ["bold"] * len(strips)
    names = [strip.lines(strip.name, width) for strip, width in both]
    tall = max(len(name) for name in names)
    names = [[" " * w] * (tall - len(name)) + name for name, w in zip(names, sizes, strict=True)]
    found = _beside(names, sizes, bold)
    if any(strip.unit for strip in strips):
        found += _beside([strip.lines(strip.unit, width) for strip, width in both], sizes, bold)
    found.append(Text("─" * (sum(sizes) + len(GAP) * (len(sizes) - 1)), "dim"))
    for place in range(len(strips[0].cells)):
        cells = [strip.lines(strip.cells[place], width) for strip, width in both]
        styles = ["bold green" if place in strip.best else "" for strip in strips]
        found += _beside(cells, sizes, styles)
    return found


def _beside(
    blocks: Sequence[Sequence[str]], sizes: Sequence[int], styles: Sequence[str]
) -> list[Text]:
    """Texts of several lines beside each other, their first lines in one line."""
    found = []
    for i in range(max(len(block) for block in blocks)):
        line = Text(GAP).join(
            Text(block[i] if i < len(block) else " " * width, style)
            for block, width, style in zip(blocks, sizes, styles, strict=True)
        )
        line.rstrip()
        found.append(line)
    return found
