"""A site that announces an answer and withholds pieces of it holds up nobody but itself."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fuels.federation.flower.folders import ServerFolder
from fuels.federation.flower.inbox import Time
from fuels.federation.flower.server import serve
from helpers.flower_world import World, settings
from helpers.wire import Wire

pytest.importorskip("flwr")
pytestmark = pytest.mark.usefixtures("quiet")

Held = Callable[[str], threading.Event | None]


class HoldingGrid:
    """A Grid that has an empty answer for every ticket, for some of them only after an event."""

    def __init__(self, held: Held) -> None:
        self.held, self.pulled = held, list[str]()

    def pull_messages(self, tickets: Sequence[str]) -> list[Any]:
        (ticket,) = tickets
        self.pulled.append(ticket)
        event = self.held(ticket)
        if event is not None:
            event.wait(30)
        told = SimpleNamespace(reply_to_message_id=ticket, src_node_id=1)
        error = SimpleNamespace(reason="no more than a word")
        return [SimpleNamespace(metadata=told, has_error=lambda: True, error=error)]


def post_on(grid: Any, folder: Path, asked: dict[str, int]) -> Any:
    from fuels.federation.flower.app import GridNetwork

    post = GridNetwork(grid, ServerFolder(folder))
    post.asked = asked
    return post


def test_an_answer_that_is_withheld_holds_no_other_and_comes_once_when_it_is_whole(
    tmp_path: Path,
) -> None:
    event = threading.Event()
    grid = HoldingGrid(lambda ticket: event if ticket == "withheld" else None)
    post = post_on(grid, tmp_path, {"withheld": 1, "one": 2, "two": 3})
    begun = time.monotonic()
    found = []
    while time.monotonic() < begun + 1.0:  # it is under way and not pulled a second time
        found += post.collect(list(post.asked))
        time.sleep(0.1)
    assert time.monotonic() - begun < 2.0
    assert sorted(found) == ["one", "two"]
    event.set()
    time.sleep(0.1)
    assert [*post.collect(["withheld"])] == ["withheld"]
    assert grid.pulled.count("withheld") == 1


def test_one_site_has_few_pulls_under_way_and_takes_none_from_others(tmp_path: Path) -> None:
    from fuels.federation.flower.app import MOST_PULLS

    event = threading.Event()
    grid = HoldingGrid(lambda ticket: event if ticket.startswith("withheld") else None)
    bad = [f"withheld {i}" for i in range(3 * MOST_PULLS)]
    post = post_on(grid, tmp_path, dict.fromkeys(bad, 1) | {"good": 2})
    before = threading.active_count()
    begun = time.monotonic()
    found = [*post.collect(list(post.asked)), *post.collect(list(post.asked))]
    assert time.monotonic() - begun < 2
    assert threading.active_count() - before <= MOST_PULLS
    assert found == ["good"]
    event.set()
    end = time.monotonic() + 10
    while post.asked and time.monotonic() < end:
        time.sleep(0.05)
        found += post.collect(list(post.asked))
    assert sorted(found) == sorted([*bad, "good"])


def test_a_round_ends_at_its_deadline_and_the_answer_counts_when_it_is_whole(
    tmp_path: Path,
) -> None:
    """North announces its upload of round 2 and sends the last piece while round 3 is trained."""
    from fuels.federation.flower.app import GridNetwork

    chosen, deadline = settings(rounds=3), 3.0
    world = World(tmp_path / "fed", chosen, deadline=deadline)
    whole = threading.Event()
    times: dict[int, float] = {}

    class Withholding(Wire):
        tickets: dict[str, tuple[str, int]]  # ticket: site and round

        def push_messages(self, messages: Sequence[Any]) -> list[str]:
            begun = len(self.seen)
            found = super().push_messages(messages)
            asked = [seen.envelope for seen in self.seen[begun:] if seen.way == "down"]
            for ticket, envelope in zip(found, asked, strict=True):
                if envelope.kind == "train":
                    self.tickets[ticket] = (envelope.site, envelope.round)
                    times.setdefault(envelope.round, time.monotonic())
            if 3 in times:
                whole.set()
            return found

        def pull_messages(self, tickets: Sequence[str]) -> list[Any]:
            if self.tickets.get(tickets[0]) == ("north", 2):
                whole.wait(60)
                time.sleep(0.2)
            if self.tickets.get(tickets[0]) == ("north", 3):
                return []
            return super().pull_messages(tickets)

    wire = Withholding(world.root, chosen)
    wire.tickets = {}
    post = GridNetwork(wire, world.server)  # type: ignore[arg-type]
    serve(post, world.server, "run", chosen, Time())
    history = world.history()
    assert [line["clients"] for line in history] == [6, 4, 6]
    assert history[1]["failures"] == ["north: no reply within 3 s"]
    assert history[2]["failures"] == ["north: no reply within 3 s"]  # round 2's stands in
    lines = (world.server.runs / "run" / "timings.jsonl").read_text().splitlines()
    assert deadline <= json.loads(lines[1])["train"] < deadline + 2
