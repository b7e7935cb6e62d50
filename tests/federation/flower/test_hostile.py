"""Uploads and downloads that must not be used: refused with a reason, without effect on others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuels.errors import FuelsError
from fuels.federation.codec import Envelope, decode, encode
from fuels.federation.flower.folders import SiteFolder
from fuels.federation.flower.worker import Worker
from fuels.federation.site import Report, Site
from fuels.methods.messages import Upload
from helpers.flower_world import LIMIT, NEVER, SITES, World, fate, settings


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
    "other site": (altered(lambda e: replace(e, site="south")), "key is another site's"),
    "other run": (altered(lambda e: replace(e, run="other")), "belongs to run"),
    "older round": (altered(lambda e: replace(e, round=1)), "stale"),
    "replayed round": (altered(lambda e: replace(e, round=2)), "duplicate"),
    "future round": (altered(lambda e: replace(e, round=9)), "not started"),
    "counts": (with_array("samples", np.array([10, 10])), "undeclared sample counts"),
    "oversized": (lambda reply: reply + bytes(200_000), "at most"),
    "no array": (lambda reply: b"\x80\x04cos\nsystem\n" + reply[:50], "not in this format"),
    "truncated": (lambda reply: reply[:-3], "truncated"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_upload_is_refused_and_changes_nothing_for_the_others(
    tmp_path: Path, name: str
) -> None:
    becomes, reason = HOSTILE[name]
    world = World(tmp_path / "fed", settings(rounds=3))
    world.network.fate = fate(3, "north", becomes=becomes)
    history = world.run()
    silent = World(tmp_path / "silent", settings(rounds=3))
    silent.network.fate = fate(3, "north", delay=NEVER)
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


@pytest.mark.parametrize("claimed", [1, 2])
def test_a_message_is_answered_with_its_own_round(tmp_path: Path, claimed: int) -> None:
    """North answers round 1 too late and round 2 in time, one of them as if it were the other."""
    world = World(tmp_path / "fed", settings(rounds=2))

    def decide(who: str, kind: str, number: int, reply: bytes) -> tuple[float, bytes | str]:
        if (who, kind) != ("north", "train"):
            return 0.0, reply
        if claimed == 1:  # a new upload that says it is the late one
            return (NEVER if number == 1 else 0.0), encode(replace(decode(reply, LIMIT), round=1))
        late = encode(replace(decode(reply, LIMIT), round=2))
        return (12.0 if number == 1 else NEVER), late  # the late one that says it is new

    world.network.fate = decide
    history = world.run()
    assert [line["clients"] for line in history] == [4, 4]
    reason = f"it is from round {claimed}, but round {3 - claimed} was requested"
    assert any(f"north: upload refused: {reason}" in text for text in history[1]["failures"])


def test_an_upload_without_a_usable_client_does_not_count_towards_the_quorum(
    tmp_path: Path,
) -> None:
    world = World(tmp_path / "fed", settings(rounds=3), quorum=1.0)
    world.network.fate = fate(3, "north", becomes=prototype(lambda p: p * np.float32(np.nan)))
    with pytest.raises(FuelsError, match="round 3: 2 of 3 sites replied, 3 are needed"):
        world.run()
    assert [line["round"] for line in world.history()] == [1, 2]
    half = prototype(lambda p: np.where(np.arange(2)[:, None, None] == 0, p, np.float32(9)))
    world.network.fate = fate(3, "north", becomes=half)
    history = world.run()  # one of its two clients is good
    assert history[2]["clients"] == 5
    assert any("client d refused" in text for text in history[2]["failures"])


@pytest.mark.parametrize(
    ("samples", "reason"),
    [
        ([10**9, 10**9], "claims 1000000000 samples"),
        ([10**18, 10**18], "claims 1000000000000000000 samples"),
        ([0, -1], "claims 0 samples"),
        ([10], "sample counts do not match the clients"),
        (None, "sample counts are missing"),
    ],
)
def test_a_weight_that_cannot_be_moves_no_average(
    tmp_path: Path, samples: list[int] | None, reason: str
) -> None:
    def claim(envelope: Envelope) -> Envelope:
        arrays = {name: array for name, array in envelope.arrays.items() if name != "samples"}
        claimed = {} if samples is None else {"samples": np.array(samples)}
        return replace(envelope, arrays=arrays | claimed)

    world, silent = (World(tmp_path / n, settings("fedavg", rounds=2)) for n in ("fed", "silent"))
    world.network.fate = fate(2, "north", becomes=altered(claim))
    silent.network.fate = fate(2, "north", delay=NEVER)
    history = world.run()
    silent.run()
    assert [line["clients"] for line in history] == [6, 4] and reason in history[1]["failures"][0]
    for name, part in silent.state().items():
        np.testing.assert_array_equal(world.state()[name], part)


def spike(row: Any) -> Any:
    """All of a row that may be, in one entry."""
    return np.where(np.arange(row.size) == 30, row.size**0.5, 0.0)


SETS: dict[str, tuple[str, Callable[[Any], Any], str]] = {
    "huge": ("augmented", lambda row: row * 1e5, "augmented reaches"),
    "everywhere at the bound": (
        "augmented",
        lambda row: np.where(np.arange(row.size) % 24 < 12, 1, -1) * row.size**0.5,
        "augmented has an RMS of",
    ),
    "a spike": ("augmented", spike, ""),
    "constant": ("augmented", lambda row: np.ones(row.size), ""),
    "nowhere": ("place", lambda row: np.array([1e5, 0, 1]), "place reaches"),
    "far off": ("place", lambda row: np.array([360, -360, 1]), ""),
}


@pytest.mark.parametrize("name", SETS)
def test_no_set_or_place_ends_the_preparation_of_fedda(tmp_path: Path, name: str) -> None:
    """What no standardised set can be is refused; the rest does not harm the warm-up."""
    array, change, reason = SETS[name]
    chosen = replace(settings("fedda", rounds=2, selection=1.0), options={"week": 1})
    world = World(tmp_path / "fed", chosen)
    for file in world.root.glob("sites/*/site.toml"):
        file.write_text(file.read_text().replace("raw_derived = false", "raw_derived = true"))

    def hostile(envelope: Envelope) -> Envelope:
        rows = [change(row) for row in envelope.arrays[f"upload/{array}"]]
        changed = {f"upload/{array}": np.stack(rows).astype(np.float32)}
        return replace(envelope, arrays=envelope.arrays | changed)

    world.network.fate = fate(1, "north", becomes=altered(hostile))
    history = world.run()
    assert [line["clients"] for line in history] == [4 if reason else 6, 6]
    assert all(reason in text for text in history[0]["failures"])
    assert len(history[0]["failures"]) == bool(reason)


def test_one_diverging_client_does_not_silence_its_site(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train = Site.train

    def diverge(site: Site, number: int, clients: Any, download: Any) -> tuple[Upload, Report]:
        upload, report = train(site, number, clients, download)
        for client in broken if number == 2 else ():
            if client in upload.clients:
                row = upload.clients.index(client)
                upload.arrays["prototype"][row] = np.nan
                report.losses["prediction"][row] = np.nan
        return upload, report

    monkeypatch.setattr(Site, "train", diverge)
    broken = {"a"}
    world = World(tmp_path / "fed", settings(rounds=3))
    history = world.run()
    assert [line["clients"] for line in history] == [6, 5, 6]
    assert history[1]["failures"] == ["north: it withholds client a; see the site's log"]
    assert history[1]["loss_prediction"] < 100  # north's figures of its other client are read
    broken = {"a", "d"}
    silent = World(tmp_path / "silent", settings(rounds=3))
    history = silent.run()
    assert [line["clients"] for line in history] == [6, 4, 6]
    (reason,) = history[1]["failures"]
    assert "nothing is sent: client a: prototype is not finite; client d" in reason


def test_an_older_request_that_comes_after_a_newer_one_is_refused(tmp_path: Path) -> None:
    world = World(tmp_path / "fed", settings(rounds=4))
    world.run()
    worker = Worker(SiteFolder(world.root / "sites" / "north"), world.settings)
    request = {
        number: content
        for site, kind, number, content in world.network.sent
        if (site, kind) == ("north", "train")
    }
    fourth = worker.answer(request[4], made=0.0)  # the same round: the same answer
    with pytest.raises(FuelsError, match="of round 3 is older than that of round 4"):
        worker.answer(request[3], made=-1.0)
    assert worker.answer(request[4], made=0.0) == fourth
    again = worker.answer(request[3], made=50.0)  # a server that was restored asks anew
    assert decode(again, LIMIT).round == 3
    with pytest.raises(FuelsError, match="of round 4 is older than that of round 3"):
        worker.answer(request[4], made=49.0)


def test_a_site_refuses_what_no_server_should_send(tmp_path: Path) -> None:
    world = World(tmp_path / "fed", settings(rounds=4))
    world.run()
    site, _, number, content = next(
        letter for letter in world.network.sent if letter[1] == "train" and letter[2] == 3
    )
    bad = {
        "nan": prototype_down(lambda p: p * np.float32(np.nan)),
        "shape": prototype_down(lambda p: p[:, :1]),
        "bound": prototype_down(lambda p: p + np.float32(2)),
        "stranger": facts(asked=["b", "z"]),
        "best round": facts(best_round=10**6),
        "no round": facts(best_round="4"),
        "name": altered(lambda e: replace(e, site="south" if site != "south" else "north")),
        "path": altered(lambda e: replace(e, run="../../outside")),
        "undeclared": with_array("shared/code", np.zeros(3, np.float32)),
        "garbage": lambda request: b"x" * 100,
    }
    for name, change in bad.items():
        later = altered(lambda e: replace(e, round=number + 90))(content)
        tickets = world.network.send({site: change(later)}, "train", number, 60.0)
        (reply,) = world.network.collect(tickets).values()
        assert isinstance(reply, FuelsError) and str(reply), name


def prototype_down(change: Callable[[Any], Any]) -> Callable[[bytes], bytes]:
    return altered(
        lambda e: replace(
            e, arrays={**e.arrays, "personal/positive": change(e.arrays["personal/positive"])}
        )
    )
