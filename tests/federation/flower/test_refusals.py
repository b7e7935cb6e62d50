"""Every refusal, wherever it happens, is logged with its reason and counted once."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from fuels.errors import FuelsError
from fuels.federation.codec import Envelope, decode, encode
from fuels.federation.flower import inbox
from fuels.federation.flower.folders import RefusalError, ServerFolder
from fuels.federation.flower.messages import read_report
from fuels.federation.refusals import LONGEST, MOST_REASONS, OTHER, Refusals
from fuels.methods.base import Sent
from fuels.methods.fuels import Fuels
from helpers.flower_world import LIMIT, NEVER, World, fate, settings


@pytest.fixture
def lines() -> Iterator[list[str]]:
    """What the log of this package gets, whoever set it up before."""
    found: list[str] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(record.getMessage())

    log, handler = logging.getLogger("fuels"), Keep(logging.INFO)
    before = log.level
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield found
    log.removeHandler(handler)
    log.setLevel(before)


def refused(world: World, lines: list[str]) -> dict[str, dict[str, int]]:
    """The counts at the end of a run; the log says each of them."""
    found: dict[str, dict[str, int]] = world.summary()["refused"]
    total = sum(sum(reasons.values()) for reasons in found.values())
    assert world.summary()["counters"]["refused"] == total
    assert sum(" refused: " in line for line in lines) == total
    return found


# -- the place -------------------------------------------------------------------------------------


def test_reasons_are_counted_without_what_they_quote(lines: list[str]) -> None:
    counts = Refusals()
    for number in (3, 4):
        reason = f"stale: it is from round {number - 2}, late by more than 1"
        failure = counts.add("north", number, "upload", reason)
        assert (failure.site, failure.reason) == ("north", f"upload refused: {reason}")
    counts.add("north", 4, "message", "array 'x' is truncated")
    counts.add("south", 4, "client d", "prototype has shape (2, 12), declared (2, 24, 16)")
    assert counts.counts == {
        "north": {"stale: it is from round *, late by more than *": 2, "array * is truncated": 1},
        "south": {"prototype has shape *, declared *": 1},
    }
    assert counts.total == 4
    assert lines[0].startswith("round 3: north: upload refused: stale: it is from round 1")
    copy = Refusals()
    copy.load(counts.state())
    copy.add("north", 5, "upload", "new")
    assert "new" not in counts.counts["north"]


def test_a_site_fills_neither_the_log_nor_the_count() -> None:
    counts = Refusals()
    failure = counts.add("north", 1, "message", "x" * 10**6 + "\nround 2: all is well")
    assert len(failure.reason) < LONGEST + 30 and "\n" not in failure.reason
    named = Refusals().add("north", 1, "client \x1b[2J\n" + "y" * 10**6, "unknown").reason
    assert named.isprintable() and len(named) < LONGEST
    for i in range(3 * MOST_REASONS):
        counts.add("north", 1, "message", "abcdefghij"[i % 10] * (1 + i // 10))
    assert len(counts.counts["north"]) == MOST_REASONS + 1
    assert counts.counts["north"][OTHER] == 1 + 3 * MOST_REASONS - MOST_REASONS
    assert counts.total == 1 + 3 * MOST_REASONS


# -- all the ways to it ----------------------------------------------------------------------------


def test_one_bad_client_of_a_good_upload(tmp_path: Path, lines: list[str]) -> None:
    world = World(tmp_path / "fed", settings(rounds=2))

    def half(reply: bytes) -> bytes:
        envelope = decode(reply, LIMIT)
        prototype = envelope.arrays["upload/prototype"].copy()
        prototype[0] = 9
        return encode(replace(envelope, arrays={**envelope.arrays, "upload/prototype": prototype}))

    world.network.fate = fate(2, "north", becomes=half)
    assert world.run()[1]["clients"] == 5
    assert refused(world, lines) == {
        "north": {"prototype reaches *; at most * is accepted": 1},
    }


def test_error_figures_of_a_refused_client_are_not_used(tmp_path: Path) -> None:
    world = World(tmp_path / "fed", settings(rounds=2))

    def half(reply: bytes) -> bytes:
        envelope = decode(reply, LIMIT)
        arrays = {name: array.copy() for name, array in envelope.arrays.items()}
        arrays["upload/prototype"][0] = 9
        arrays["val_mse"][0] = arrays["loss/prediction"][0] = 1e5
        return encode(replace(envelope, arrays=arrays))

    world.network.fate = fate(2, "north", becomes=half)
    line = world.run()[1]
    assert line["clients"] == 5
    assert line["val_mse"] < 100 and line["loss_prediction"] < 100


@pytest.mark.parametrize("bad", [1, 2])
def test_a_late_upload_is_checked_by_what_its_own_round_declared(
    tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch, bad: int
) -> None:
    """Entries of 3 are beyond the bound of round 2, and within the one that round 3 has here."""
    original = Fuels.uploads

    def uploads(self: Fuels, number: int) -> dict[str, Sent]:
        declared = original(self, number)
        return {name: replace(s, bound=5.0 if number > 2 else 1.0) for name, s in declared.items()}

    def decide(who: str, kind: str, number: int, reply: bytes) -> tuple[float, bytes | str]:
        if (who, kind) != ("north", "train") or number == 1:
            return 0.0, reply
        envelope = decode(reply, LIMIT)
        prototype = envelope.arrays["upload/prototype"].copy()
        prototype[:bad] = 3
        arrays = envelope.arrays | {"upload/prototype": prototype}
        return (12.0 if number == 2 else NEVER), encode(replace(envelope, arrays=arrays))

    monkeypatch.setattr(Fuels, "uploads", uploads)
    world = World(tmp_path / "fed", settings(rounds=3))
    world.network.fate = decide
    assert [line["clients"] for line in world.run()] == [6, 4, 6 - bad]
    assert sum(refused(world, lines)["north"].values()) == 1


def test_a_late_upload_made_of_other_arrays_does_not_join_the_round(
    tmp_path: Path, lines: list[str]
) -> None:
    """FedDA's round 1 sends sets and places, its round 2 models."""
    chosen = replace(settings("fedda", rounds=3, selection=1.0), options={"week": 1})
    world = World(tmp_path / "fed", chosen)
    for file in world.root.glob("sites/*/site.toml"):
        file.write_text(file.read_text().replace("raw_derived = false", "raw_derived = true"))

    def decide(who: str, kind: str, number: int, reply: bytes) -> tuple[float, bytes | str]:
        late = {1: 12.0, 2: NEVER} if (who, kind) == ("north", "train") else {}
        return late.get(number, 0.0), reply

    world.network.fate = decide
    history = world.run()
    assert [line["clients"] for line in history] == [4, 4, 6]
    reason = "late: it is from round *, whose arrays differ from round *"
    assert refused(world, lines) == {"north": {reason: 1}}


def test_a_stale_upload_and_what_is_late_and_unreadable(tmp_path: Path, lines: list[str]) -> None:
    world = World(tmp_path / "fed", settings(rounds=4), quorum=0.3)

    def decide(who: str, kind: str, number: int, reply: bytes) -> tuple[float, bytes | str]:
        """North answers round 1 in round 3, south answers it with half a message in round 2."""
        if (who, kind) == ("north", "train"):
            return {1: 25.0, 2: NEVER, 3: NEVER}.get(number, 0.0), reply
        if (who, kind, number) == ("south", "train", 1):
            return 12.0, reply[:40]
        return 0.0, reply

    world.network.fate = decide
    history = world.run()
    assert [line["clients"] for line in history] == [2, 4, 4, 6]
    assert refused(world, lines) == {
        "north": {"stale: it is from round *, late by more than *": 1},
        "south": {"the header of the message is truncated or too long": 1},
    }


@pytest.mark.parametrize("kind", ["evaluate", "finish"])
def test_a_false_answer_besides_training(tmp_path: Path, lines: list[str], kind: str) -> None:
    world = World(tmp_path / "fed", settings("fedavg", rounds=1))

    def decide(who: str, what: str, number: int, reply: bytes) -> tuple[float, bytes | str]:
        if (who, what) != ("north", kind):
            return 0.0, reply
        return 0.0, encode(replace(decode(reply, LIMIT), site="south"))

    world.network.fate = decide
    world.run()
    assert any(f"north: {kind} refused: it claims to come from site 'south'" in s for s in lines)
    reason = "it claims to come from site *, but its key is another site's"
    assert refused(world, lines) == {"north": {reason: 1}}
    assert world.summary()["unconfirmed"] == (["north"] if kind == "finish" else [])


@pytest.mark.parametrize(
    ("figures", "reason"),
    [
        ({"val_mse": np.array([-1.0, 0.2])}, "not between 0 and 1e+06"),
        ({"val_mae": np.array([1e300, 0.2])}, "not between 0 and 1e+06"),
        ({"val_mse": np.array([np.inf, 0.2])}, "not between 0 and 1e+06"),
        ({"val_mse": np.array([0.2])}, "do not match the clients"),
        ({"loss/prediction": np.array([np.nan, 0.2])}, "diverged"),
        ({"loss/prediction": np.array([1e9, 0.2])}, "exceeds 1e+06"),
        ({"loss/<b>": np.array([0.1, 0.2])}, "undeclared loss '<b>'"),
    ],
)
def test_error_figures_that_cannot_be(figures: dict[str, Any], reason: str) -> None:
    good = {"val_mse": np.array([np.nan, 0.2]), "val_mae": np.array([np.nan, 0.3])}
    facts = {"clients": ["a", "d"]}
    assert read_report(Envelope("train", "run", 1, "north", facts, good), ()) is not None
    with pytest.raises(FuelsError, match=reason.replace("+", r"\+")):
        read_report(Envelope("train", "run", 1, "north", facts, good | figures), ["prediction"])


def test_bad_error_figures_leave_the_upload(tmp_path: Path, lines: list[str]) -> None:
    world = World(tmp_path / "fed", settings(rounds=2))

    def boast(reply: bytes) -> bytes:
        envelope = decode(reply, LIMIT)
        return encode(
            replace(envelope, arrays={**envelope.arrays, "val_mse": np.array([-1e9, -1e9])})
        )

    world.network.fate = fate(2, "north", becomes=boast)
    history = world.run()
    assert history[1]["clients"] == 6 and history[1]["val_mse"] > 0
    assert refused(world, lines) == {"north": {"a validation error is not between * and *": 1}}


def test_error_figures_of_others_in_an_evaluation(tmp_path: Path, lines: list[str]) -> None:
    world = World(tmp_path / "fed", settings("fedavg", rounds=2))

    def decide(who: str, kind: str, number: int, reply: bytes) -> tuple[float, bytes | str]:
        if (who, kind, number) != ("north", "evaluate", 2):
            return 0.0, reply
        return 0.0, encode(replace(decode(reply, LIMIT), facts={"clients": ["a", "b"]}))

    world.network.fate = decide
    world.run()
    assert refused(world, lines) == {"north": {"they name clients that were not asked for": 1}}


@pytest.mark.parametrize(
    ("kind", "name"), [("evaluate", "prediction"), ("train", "made_up"), ("train", "intra")]
)
def test_losses_come_with_training_and_are_those_of_the_method(
    tmp_path: Path, lines: list[str], kind: str, name: str
) -> None:
    world = World(tmp_path / "fed", settings("fedavg", rounds=2))

    def decide(who: str, asked: str, number: int, reply: bytes) -> tuple[float, bytes | str]:
        if (who, asked, number) != ("north", kind, 2):
            return 0.0, reply
        envelope = decode(reply, LIMIT)
        arrays = {**envelope.arrays, f"loss/{name}": np.full(2, 12345.0)}
        return 0.0, encode(replace(envelope, arrays=arrays))

    world.network.fate = decide
    line = world.run()[1]
    assert line["clients"] == 6 and line["loss_prediction"] < 100 and line["val_mse"] is not None
    assert {key for key in line if key.startswith("loss_")} == {"loss_prediction"}
    assert line["failures"] == [f"north: error figures refused: undeclared loss '{name}'"]
    assert refused(world, lines) == {"north": {"undeclared loss *": 1}}


@pytest.mark.parametrize("place", ["decode", "read_upload", "read_report"])
def test_a_message_that_breaks_its_reader_is_refused_and_the_round_goes_on(
    tmp_path: Path, lines: list[str], monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    world = World(tmp_path / "fed", settings(rounds=3))
    original, seen = getattr(inbox, place), [0]

    def stumble(*arguments: Any) -> Any:
        envelope = arguments[0] if place != "decode" else decode(arguments[0], LIMIT)
        if (envelope.site, envelope.kind, envelope.round) == ("north", "train", 2):
            seen[0] += 1
            raise ZeroDivisionError
        return original(*arguments)

    monkeypatch.setattr(inbox, place, stumble)
    history = world.run()
    assert [line["clients"] for line in history] == [6, 6 if place == "read_report" else 4, 6]
    assert seen == [1]
    assert refused(world, lines) == {"north": {"it cannot be read *": 1}}
    assert "a message could not be read" in lines


def test_what_flower_or_the_post_cannot_read(tmp_path: Path, lines: list[str]) -> None:
    world = World(tmp_path / "fed", settings(rounds=3))
    original = world.network.collect

    def collect(tickets: Any) -> dict[str, bytes | FuelsError]:
        sent = {t: world.network.waiting[t] for t in tickets if t in world.network.waiting}
        return {
            ticket: FuelsError("Flower cannot read it (ValueError)")
            if (sent[ticket].site, sent[ticket].kind, sent[ticket].number) == ("north", "train", 2)
            else reply
            for ticket, reply in original(tickets).items()
        }

    world.network.collect = collect  # type: ignore[method-assign]
    history = world.run()
    assert history[1]["failures"] == ["north: message refused: Flower cannot read it (ValueError)"]
    assert refused(world, lines) == {"north": {"Flower cannot read it *": 1}}


def test_the_post_says_what_it_could_not_read(tmp_path: Path) -> None:
    pytest.importorskip("flwr")
    from flwr.app import RecordDict

    from fuels.federation.flower.app import GridNetwork

    def message(**values: Any) -> Any:
        base = {"has_error": lambda: False, "content": RecordDict()}
        told = {"reply_to_message_id": "other", "src_node_id": 7}
        told |= {name: values.pop(name) for name in tuple(values) if name in told}
        return SimpleNamespace(metadata=SimpleNamespace(**told), **{**base, **values})

    class Grid:
        def pull_messages(self, tickets: list[str]) -> list[Any]:
            if tickets == ["breaks"]:
                raise KeyError("a missing piece")
            error = SimpleNamespace(reason="Error:<'out of memory'>")
            return {
                "other": [message()],
                "failed": [
                    message(has_error=lambda: True, error=error, reply_to_message_id="failed")
                ],
                "open": [message(reply_to_message_id="")],  # somebody's letter of his own
                "forged": [message(reply_to_message_id="forged", src_node_id=8)],
            }[tickets[0]]

    post = GridNetwork(Grid(), ServerFolder(tmp_path))  # type: ignore[arg-type]
    post.asked["forged"] = 7
    tickets = ["breaks", "other", "failed", "open", "forged"]
    replies = post.collect(tickets)
    assert type(replies["breaks"]) is FuelsError
    assert str(replies["breaks"]) == "Flower cannot read it (KeyError)"
    assert type(replies["other"]) is FuelsError
    assert str(replies["other"]) == "the message is not in this format"
    assert isinstance(replies["failed"], RefusalError) and str(replies["failed"]) == "out of memory"
    assert "open" not in replies and "forged" not in replies


def test_counts_survive_a_restart(tmp_path: Path, lines: list[str]) -> None:
    world = World(tmp_path / "fed", settings(rounds=3))
    world.network.fate = fate(1, "north", becomes=lambda reply: reply[:40])
    original = world.network.collect

    class KilledError(BaseException):
        pass

    def collect(tickets: Any) -> Any:
        if any((kind, number) == ("train", 3) for _, kind, number, _ in world.network.sent):
            world.network.collect = original  # type: ignore[method-assign]
            raise KilledError
        return original(tickets)

    world.network.collect = collect  # type: ignore[method-assign]
    with pytest.raises(KilledError):
        world.run()
    world.run()
    assert sum(refused(world, lines)["north"].values()) == 1
