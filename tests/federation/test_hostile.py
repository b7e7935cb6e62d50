"""Uploads and downloads that must not be used: refused with a reason, without effect on others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.federation.helpers import LIMIT, NEVER, SITES, World, fate, settings

from fuels.errors import FuelsError
from fuels.federation.codec import Envelope, decode, encode


def altered(change: Callable[[Envelope], Envelope]) -> Callable[[bytes], bytes]:
    return lambda reply: encode(change(decode(reply, LIMIT)))


def with_array(name: str, array: Any) -> Callable[[bytes], bytes]:
    return altered(lambda e: replace(e, arrays={**e.arrays, name: array}))


def prototype(change: Callable[[Any], Any]) -> Callable[[bytes], bytes]:
    return altered(
        lambda e: replace(
            e, arrays={**e.arrays, "upload/prototype": change(e.arrays["upload/prototype"])}
        )
    )


def facts(**values: Any) -> Callable[[bytes], bytes]:
    return altered(lambda e: replace(e, facts={**e.facts, **values}))


HOSTILE: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "nan": (prototype(lambda p: p * np.float32(np.nan)), "not finite"),
    "inf": (prototype(lambda p: p + np.float32(np.inf)), "not finite"),
    "scaled": (prototype(lambda p: p * np.float32(1000)), "at most 1"),
    "shape": (prototype(lambda p: p[:, :12]), "shape"),
    "broadcast": (prototype(lambda p: p.ravel()[:1]), "shape"),
    "dtype": (prototype(lambda p: p.astype(np.float64)), "float64"),
    "missing": (
        altered(
            lambda e: replace(
                e, arrays={k: v for k, v in e.arrays.items() if k != "upload/prototype"}
            )
        ),
        "missing arrays",
    ),
    "extra": (with_array("upload/model", np.zeros((2, 4), np.float32)), "undeclared arrays"),
    "unknown": (with_array("secrets", np.zeros(3)), "undeclared array"),
    "other site's client": (facts(clients=["b", "d"]), "not asked"),
    "twice the same client": (facts(clients=["d", "d"]), "twice"),
    "other site": (altered(lambda e: replace(e, site="south")), "not its key's name"),
    "other run": (altered(lambda e: replace(e, run="other")), "belongs to run"),
    "older round": (altered(lambda e: replace(e, round=1)), "stale"),
    "replayed round": (altered(lambda e: replace(e, round=2)), "duplicate"),
    "future round": (altered(lambda e: replace(e, round=9)), "not begun"),
    "samples": (with_array("samples", np.array([10**9, 10**9])), "samples"),
    "oversized": (lambda reply: reply + bytes(200_000), "at most"),
    "no array": (lambda reply: b"\x80\x04cos\nsystem\n" + reply[:50], "not in this format"),
    "cut off": (lambda reply: reply[:-3], "cut off"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_upload_is_refused_and_changes_nothing_for_the_others(
    tmp_path: Path, name: str
) -> None:
    becomes, reason = HOSTILE[name]
    world = World(tmp_path / "fed", settings(rounds=3))
    world.post.fate = fate(3, "north", becomes=becomes)
    history = world.run()
    silent = World(tmp_path / "silent", settings(rounds=3))
    silent.post.fate = fate(3, "north", delay=NEVER)
    silent.run()
    assert any(reason in text and text.startswith("north") for text in history[2]["failures"])
    told = [text for line in history for text in line["failures"] if " refused: " in text]
    refused = world.summary()["refused"]
    assert set(refused) == {"north"} and sum(refused["north"].values()) == len(told) >= 1
    assert world.summary()["counters"]["refused"] == len(told)
    others = [i for i, client in enumerate("abcdef") if client not in SITES["north"]]
    if name != "other site's client":  # there the site's own client is good and counts
        np.testing.assert_array_equal(world.state()["prototypes"], silent.state()["prototypes"])
        np.testing.assert_array_equal(world.state()["jsd"], silent.state()["jsd"])
    np.testing.assert_array_equal(
        world.state()["prototypes"][others], silent.state()["prototypes"][others]
    )


def test_an_upload_without_a_usable_client_does_not_count_towards_the_quorum(
    tmp_path: Path,
) -> None:
    world = World(tmp_path / "fed", settings(rounds=3), quorum=1.0)
    world.post.fate = fate(3, "north", becomes=prototype(lambda p: p * np.float32(np.nan)))
    with pytest.raises(FuelsError, match="round 3: 2 of 3 sites answered, 3 are needed"):
        world.run()
    assert [line["round"] for line in world.history()] == [1, 2]
    half = prototype(lambda p: np.where(np.arange(2)[:, None, None] == 0, p, np.float32(9)))
    world.post.fate = fate(3, "north", becomes=half)
    history = world.run()  # one of its two clients is good
    assert history[2]["clients"] == 5
    assert any("client d refused" in text for text in history[2]["failures"])


def test_a_site_refuses_what_no_server_should_send(tmp_path: Path) -> None:
    world = World(tmp_path / "fed", settings(rounds=4))
    world.run()
    site, _, number, content = next(
        letter for letter in world.post.sent if letter[1] == "train" and letter[2] == 3
    )
    bad = {
        "nan": prototype_down(lambda p: p * np.float32(np.nan)),
        "shape": prototype_down(lambda p: p[:, :1]),
        "bound": prototype_down(lambda p: p + np.float32(2)),
        "stranger": facts(asked=["b", "z"]),
        "name": altered(lambda e: replace(e, site="south" if site != "south" else "north")),
        "path": altered(lambda e: replace(e, run="../../outside")),
        "undeclared": with_array("shared/code", np.zeros(3, np.float32)),
        "garbage": lambda request: b"x" * 100,
    }
    for name, change in bad.items():
        later = altered(lambda e: replace(e, round=number + 90))(content)
        tickets = world.post.send({site: change(later)}, "train", number, 60.0)
        (answer,) = world.post.collect(tickets)
        assert answer.content is None and answer.reason, name


def prototype_down(change: Callable[[Any], Any]) -> Callable[[bytes], bytes]:
    return altered(
        lambda e: replace(
            e, arrays={**e.arrays, "personal/positive": change(e.arrays["personal/positive"])}
        )
    )
