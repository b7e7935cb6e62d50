"""A site that sends false values again and again is excluded from the run; the others train on."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fuels.config import merge
from fuels.errors import FuelsError
from fuels.federation.codec import decode, encode
from fuels.federation.flower.status import excluded
from fuels.federation.refusals import Refusals
from helpers.flower_world import LIMIT, World, settings

pytest.importorskip("flwr")


def world(root: Path, limit: int, rounds: int = 5, **defence: float) -> World:
    chosen = merge(settings("fedavg", rounds), {"defence": {"refusals": limit, **defence}}, "test")
    return World(root / "fed", chosen)


def times(site: str, factor: float) -> Callable[[str, str, int, bytes], tuple[float, bytes]]:
    """Multiplies the uploads of one site."""

    def decide(who: str, kind: str, number: int, reply: bytes) -> tuple[float, bytes]:
        if (who, kind) != (site, "train"):
            return 0.0, reply
        envelope = decode(reply, LIMIT)
        arrays = {
            name: (factor * array).astype(array.dtype) if name.startswith("upload/") else array
            for name, array in envelope.arrays.items()
        }
        return 0.0, encode(replace(envelope, arrays=arrays))

    return decide


def asked(fed: World, site: str, kind: str) -> list[int]:
    return [number for who, what, number, _ in fed.network.sent if (who, what) == (site, kind)]


def test_a_site_whose_messages_are_refused_is_excluded(tmp_path: Path) -> None:
    fed = world(tmp_path, limit=2)
    fed.network.fate = times("north", np.nan)
    history = fed.run()
    assert asked(fed, "south", "train") == [1, 2, 3, 4, 5] and asked(fed, "north", "train") == [
        1,
        2,
    ]
    why = "2 of its messages were refused (defence.refusals)"
    assert excluded(history) == {"north": why} == fed.summary()["excluded_sites"]
    assert f"north: excluded from the run: {why}" in history[2]["failures"]
    assert not any("north" in text for text in history[3]["failures"])
    assert asked(fed, "north", "finish") == [] and asked(fed, "north", "evaluate") == [1, 2]
    assert fed.summary()["unconfirmed"] == []


def test_a_site_that_is_left_out_again_and_again_is_excluded(tmp_path: Path) -> None:
    fed = world(tmp_path, limit=2, admission=5.0, clip=2.0)
    fed.network.fate = times("north", -10.0)
    history = fed.run()
    assert asked(fed, "north", "train") == [1, 2]
    assert [line.get("left_out", 0) for line in history] == [2, 2, 0, 0, 0]
    assert excluded(history)["north"].startswith("all its clients were refused or left out in 2")


def test_without_a_limit_no_site_is_excluded(tmp_path: Path) -> None:
    fed = world(tmp_path, limit=0, rounds=3)
    fed.network.fate = times("north", np.nan)
    assert excluded(fed.run()) == {} and asked(fed, "north", "train") == [1, 2, 3]


def test_late_uploads_do_not_exclude(tmp_path: Path) -> None:
    fed = world(tmp_path, limit=1, rounds=4)
    late = 2 * fed.server.config.rules.deadline + 5

    def delay(who: str, kind: str, number: int, reply: bytes) -> tuple[float, bytes]:
        return (late if (who, kind) == ("north", "train") and number < 3 else 0.0), reply

    fed.network.fate = delay
    assert excluded(fed.run()) == {}


def test_an_exclusion_survives_a_restart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, cut = world(tmp_path / "whole", limit=2), world(tmp_path / "cut", limit=2)
    for fed in (whole, cut):
        fed.network.fate = times("north", np.nan)
    history, send = whole.run(), cut.network.send

    def stop(contents: Mapping[str, bytes], kind: str, number: int, ttl: float) -> list[str]:
        if number == 4:
            raise FuelsError("stopped here")
        return send(contents, kind, number, ttl)

    monkeypatch.setattr(cut.network, "send", stop)
    with pytest.raises(FuelsError, match="stopped here"):
        cut.run()
    monkeypatch.setattr(cut.network, "send", send)
    assert cut.run() == history and asked(cut, "north", "train") == [1, 2]


def test_a_client_that_is_sometimes_left_out_does_not_exclude_its_site() -> None:
    refused = Refusals(limit=3)
    for _ in range(3):
        refused.leave_out(["a", "u"], ["a"])
    assert refused.verdict("north", ["a"], rounds=5) != ""
    assert refused.verdict("north", ["a"], rounds=6) == ""  # not in more than half of them
    assert refused.verdict("north", ["a", "d"], rounds=5) == ""
    assert refused.verdict("north", ["u"], rounds=5) == ""  # unusual, but not false
    again = Refusals(limit=3)
    again.load(refused.state())
    assert again.verdict("north", ["a"], rounds=5) != "" and again.left_out == {"a": 3, "u": 3}


@pytest.mark.parametrize("votes", ["client", "site"])
def test_the_server_knows_who_shares_a_vote(tmp_path: Path, votes: str) -> None:
    chosen = merge(settings("fuels", 1), {"defence": {"votes": votes}}, "test")
    fed = World(tmp_path / "fed", chosen)
    fed.run()
    found = fed.state().get("sites")
    if votes == "client":
        assert found is None
    else:  # clients a to f of three sites, in turn
        assert found is not None and len(set(found)) == 3 and (found[:3] == found[3:]).all()
