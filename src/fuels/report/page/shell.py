"""The page around the sections: head, navigation, style sheet and script, all in one file."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

from fuels.report.page.elements import Child, Html, el, escape, joined
from fuels.version import __version__

NAME = "report.html"


@dataclass(frozen=True)
class Section:
    """One part of a report; `name` is its id, also in links."""

    name: str
    title: str
    content: Html
    short: str = ""  # in the navigation


def section(name: str, title: str, short: str, *content: Child) -> Section:
    """A section with this content; what is None is left out."""
    return Section(name, title, joined(content), short)


def page(title: str, subtitle: str, sections: Sequence[Section], foot: Child = None) -> str:
    """The whole document. Its policy allows no request and no script or style but its own."""
    style, script = (
        Html((files("fuels.report.page") / name).read_text(encoding="utf-8"))
        for name in ("style.css", "script.js")
    )
    policy = (
        f"default-src 'none'; img-src data:; script-src {_hash(script)}; style-src {_hash(style)};"
        " base-uri 'none'; form-action 'none'"
    )
    head = el(
        "head",
        el("meta", charset="utf-8"),
        el("meta", http_equiv="Content-Security-Policy", content=policy),
        el("meta", name="viewport", content="width=device-width, initial-scale=1"),
        el("meta", name="color-scheme", content="light dark"),
        el("meta", name="generator", content=f"fuels {__version__}"),
        el("title", title),
        el("style", style),
    )
    links = [el("li", el("a", each.short or each.title, href=f"#{each.name}")) for each in sections]
    parts = [
        el(
            "section",
            el("h2", each.title, id=f"{each.name}-title"),
            each.content,
            id=each.name,
            aria_labelledby=f"{each.name}-title",
        )
        for each in sections
    ]
    top = el(
        "header",
        el("div", el("h1", title), el("p", subtitle, class_="quiet")),
        el("button", "Dark theme", type="button", id="theme"),
        class_="top",
    )
    body = el(
        "body",
        el("a", "Skip to the report", href="#content", class_="skip"),
        el(
            "div",
            top,
            el("nav", el("ul", *links), aria_label="Sections"),
            el("main", joined(parts), el("footer", foot), id="content"),
            class_="layout",
        ),
        el("script", script),
    )
    return f"<!doctype html>\n{el('html', head, body, lang='en')}\n"


def code(text: str) -> Html:
    """A block of code that can be scrolled with the keyboard."""
    return el("pre", el("code", escape(text)), tabindex="0")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
