"""HTML elements: whatever is not `Html` already is escaped, so no name can become markup."""

from __future__ import annotations

import base64
import html
from collections.abc import Iterable, Sequence
from pathlib import Path

from fuels.report.style import number
from fuels.report.tables import Table, absent

Child = str | None  # text is escaped, Html is not, None is left out


class Html(str):
    """Text that is markup."""

    __slots__ = ()


NOTHING = Html("")
VOID = ("br", "img", "input", "meta")


def escape(text: str) -> Html:
    return Html(html.escape(text, quote=True))


def el(tag: str, *children: Child, **attributes: str | int | float | bool | None) -> Html:
    """An element. A trailing _ of an attribute's name is dropped, other _ become -."""
    given = []
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        name = key.rstrip("_").replace("_", "-")
        given.append(f" {name}" if value is True else f' {name}="{escape(str(value))}"')
    start = f"<{tag}{''.join(given)}>"
    return Html(start if tag in VOID else f"{start}{joined(children)}</{tag}>")


def joined(children: Iterable[Child]) -> Html:
    return Html("".join(c if isinstance(c, Html) else escape(c) for c in children if c is not None))


def paragraphs(*texts: Child) -> Html:
    return joined(el("p", text) for text in texts if text)


def notice(label: str, text: str) -> Html:
    return el("p", el("strong", f"{label} ") if label else None, text, class_="notice")


def tiles(found: Iterable[tuple[str, str, str]]) -> Html:
    """The few numbers that matter most: name, value, and what it means."""
    blocks = [
        el("div", el("dt", name), el("dd", el("strong", value), el("span", more)))
        for name, value, more in found
    ]
    return el("dl", *blocks, class_="tiles") if blocks else NOTHING


def capital(text: str) -> str:
    """A text that begins with a capital letter."""
    return text[:1].upper() + text[1:]


def bullets(texts: Iterable[Child]) -> Html:
    items = [el("li", text) for text in texts]
    return el("ul", *items) if items else NOTHING


def definitions(pairs: Iterable[tuple[Child, Child]]) -> Html:
    """Labels and what belongs to them."""
    rows = (joined([el("dt", label), el("dd", text)]) for label, text in pairs)
    return el("dl", *rows, class_="facts")


def table(found: Table) -> Html:
    """A result table; the first column heads its row, the best values are bold."""
    numeric = [found.is_numeric(i) for i in range(len(found.columns))]
    winners = [found.winners(i) for i in range(len(found.columns))]
    head = [
        el("th", column.name, *unit_of(column.unit), scope="col", class_="n" if right else None)
        for column, right in zip(found.columns, numeric, strict=True)
    ]
    rows = []
    for place, row in enumerate(found.rows):
        cells = []
        for i, cell in enumerate(row):
            text: Child = cell if isinstance(cell, str) else number(cell)
            if place in winners[i]:
                text = el("strong", text, el("span", " (best)", class_="sr"))
            kind_of = "n" if numeric[i] else None
            cells.append(el("th", text, scope="row") if i == 0 else el("td", text, class_=kind_of))
        rows.append(el("tr", *cells))
    return scrolling(found.title, head, rows)


def unit_of(unit: str) -> list[Html]:
    return [el("span", unit, class_="unit")] if unit else []


def scrolling(
    caption: str, head: Sequence[Html], rows: Sequence[Html], **attributes: str | None
) -> Html:
    """A table that is wider than the screen scrolls by itself, also with the keyboard."""
    content = el(
        "table",
        el("caption", el("span", caption)),
        el("thead", el("tr", *head)),
        el("tbody", *rows),
        **attributes,
    )
    return el("div", content, class_="scroll", tabindex="0", role="region", aria_label=caption)


def sortable(found: Table, name: str, label: str, order: Sequence[int], by: str) -> Html:
    """A table that can be sorted by every column and searched.

    At first, and without JavaScript, it is in this order, descending by the column `by`. `name` is
    its id, `label` what a row is.
    """
    numeric = [found.is_numeric(i) for i in range(len(found.columns))]
    head = [
        el(
            "th",
            el("button", column.name, *unit_of(column.unit), type="button"),
            scope="col",
            aria_sort="descending" if column.name == by else "none",
            class_="n" if right else None,
        )
        for column, right in zip(found.columns, numeric, strict=True)
    ]
    rows = []
    for place in order:
        cells = []
        for i, cell in enumerate(found.rows[place]):
            sort = None if isinstance(cell, str) or absent(cell) else f"{cell:.6g}"
            text = cell if isinstance(cell, str) else number(cell, 3)
            if i == 0:
                cells.append(el("th", text, scope="row"))
            else:
                cells.append(el("td", text, class_="n" if numeric[i] else "text", data_v=sort))
        rows.append(el("tr", *cells))
    search = el(
        "div",
        el("label", f"Search for a {label} ", el("input", type="search", aria_controls=name)),
        el("output", f"{number(len(rows))} rows", aria_live="polite"),
        class_="search",
    )
    body = scrolling(found.title, head, rows, id=name, class_="sortable")
    return el("div", search, body, class_="finder")


def picture(path: Path, description: str) -> Html:
    """A PNG file inside the page."""
    data = base64.b64encode(path.read_bytes()).decode()
    return el("figure", el("img", src=f"data:image/png;base64,{data}", alt=description))
