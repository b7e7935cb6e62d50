"""The base class of all commands: argument checks and help formatting."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import cleandoc

import click
import typer
from typer.core import TyperCommand

from fuels.errors import FuelsError


class Command(TyperCommand):
    """A command that refuses empty arguments and suggests one option for an unknown one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:  # which is set while the shell completes a line
            refuse_empty(args)
        before = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            error.possibilities = (error.possibilities or [])[:1]  # the best one comes first
            error.message += "."
            raise
        except click.UsageError as error:
            if "unexpected extra argument" in error.message and "--data" in before:
                error.message = (
                    f"{error.message.rstrip('.')}. Several files are one word: put a pattern in"
                    " quotes, such as --data 'daily/*.csv', or commas between files."
                )
            raise


def refuse_empty(words: Sequence[str]) -> None:
    """An empty path would be taken for the current folder, or be ignored."""
    before = ""
    for word in words:
        option, equals, value = word.partition("=")
        if word.startswith("--") and equals and not value.strip():
            raise FuelsError(f"{option} is empty: give it a value or omit it")
        if not word.strip():
            what = before if before.startswith("--") else "an argument"
            raise FuelsError(f"{what} is empty: give it a value or omit it")
        before = word


def prose(text: str) -> str:
    """Paragraphs without the source's line breaks, so that help fits any width."""
    return "\n\n".join(" ".join(part.split()) for part in cleandoc(text).split("\n\n"))


def equip(app: typer.Typer) -> None:
    """Make every command of an app, and of the groups in it, a `Command` with help as prose."""
    for info in app.registered_commands:
        info.cls = Command
        info.help = prose(info.help or getattr(info.callback, "__doc__", None) or "")
    for group in app.registered_groups:
        if group.typer_instance is not None:
            equip(group.typer_instance)
