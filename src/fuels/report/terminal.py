"""Tables and sentences on a terminal of any width; no number and no name is ever cut.

A table that is too wide first wraps its headings and texts. If that is not enough, its columns are
split into bands, printed below each other, each starting with the first column. rich.table.Table
has no bands: at 80 columns it cuts 5 of the 16 numbers of a two-row `fuels compare` table, at 60
columns 10 of them, and it breaks lists such as 2,4,8,16 inside a number.
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
UNLIMITED = 100_000  # columns: wider than any line
SHORT = 20  # a text of up to this length is not wrapped


def say(console: Console, text: str, style: str = "") -> None:
    """A sentence: wrapped on a terminal, one line where a program may read it."""
    console.print(
        Text(text), style=style or None, highlight=False, soft_wrap=not console.is_terminal
    )


def plain(shown: RenderableType) -> str:
    """What a terminal would show, without colours, wrapping and trailing blanks."""
    file = io.StringIO()
    Console(file=file, width=UNLIMITED).print(shown)
    return "".join(f"{line.rstrip()}\n" for line in file.getvalue().splitlines())


@dataclass(frozen=True)
class Strip:
    """A column as it is shown: heading, unit, cells, and the rows with the best value."""

    name: str
    unit: str
    cells: Sequence[str]
    numeric: bool  # cells are padded so that decimal points line up when right-aligned
    best: Set[int]

    @property
    def full(self) -> int:
        """The width at which nothing wraps."""
        return _widest([self.name, self.unit, *self.cells])

    def least(self, room: int) -> int:
        """The width below which a number or a word would have to be broken."""
        heading = min(_widest([*_pieces(self.name), *_pieces(self.unit)]), room // 2)
        if self.numeric:
            return max(heading, _widest(self.cells))
        words = _widest(piece for cell in self.cells for piece in _pieces(cell))
        return max(heading, min(max(words, min(_widest(self.cells), SHORT)), room // 2))

    def enough(self, height: int, room: int) -> int:
        """The least width at which heading and unit take at most `height` lines each."""
        sizes = range(self.least(room), self.full)
        heads = (self.name, self.unit)
        fits = (w for w in sizes if all(len(wrapped(text, w)) <= height for text in heads))
        return next(fits, self.full)

    def lines(self, text: str, width: int) -> list[str]:
        """A text wrapped to `width`, each line padded to exactly that width."""
        pad = [(line, " " * (width - cell_len(line))) for line in wrapped(text, width)]
        return [blank + line if self.numeric else line + blank for line, blank in pad]


class Fitted:
    """A table that fits itself to the width of the console when it is printed."""

    def __init__(self, strips: Sequence[Strip]) -> None:
        self.strips = strips

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = options.max_width
        for place, strips in enumerate(bands(self.strips, room)):
            if place:
                yield ""
            yield Text("\n").join(_lines(strips, widths(strips, room)))


def bands(strips: Sequence[Strip], room: int) -> list[list[Strip]]:
    """Groups of columns that fit side by side, each starting with the first column."""
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
    """Column widths: enough to keep the headings low, and the rest for the texts."""
    least, full = [strip.least(room) for strip in strips], [strip.full for strip in strips]
    free = room - len(GAP) * (len(strips) - 1)
    tries = ([strip.enough(height, room) for strip in strips] for height in count(1))
    found = next(sizes for sizes in tries if sum(sizes) <= free or sizes == least)
    texts = [i for i, strip in enumerate(strips) if not strip.numeric]
    while sum(found) < free and any(found[i] < full[i] for i in texts):
        found[max(texts, key=lambda i: full[i] / max(found[i], 1))] += 1
    return found


def wrapped(text: str, width: int) -> list[str]:
    """A text in lines of at most `width`, broken after blanks and commas; long words are split.

    A text that fits, such as a padded number, stays as it is.
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
    """The unbreakable pieces: words, and the items of a list between commas."""
    return re.findall(r"[^\s,]*,*\s*", text)[:-1]


def _widest(texts: Iterable[str]) -> int:
    return max((cell_len(text.rstrip()) for text in texts), default=0)


def _lines(strips: Sequence[Strip], sizes: Sequence[int]) -> list[Text]:
    """Headings, a rule and the rows, as styled lines."""
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
    """Blocks of lines side by side, aligned at the top."""
    found = []
    for i in range(max(len(block) for block in blocks)):
        line = Text(GAP).join(
            Text(block[i] if i < len(block) else " " * width, style)
            for block, width, style in zip(blocks, sizes, styles, strict=True)
        )
        line.rstrip()
        found.append(line)
    return found
