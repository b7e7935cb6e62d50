"""The bench: rivals do the same work as the engine, figures are what they say, processes end."""

from __future__ import annotations

import json
import multiprocessing
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fuels.errors import FuelsError
from fuels.research.bench import flower_rival, measure, pfl_rival
from fuels.research.bench.divergence import Divergences
from fuels.research.bench.eager import Eager, Start, fuels_epoch, new_adam, unit_rows
from fuels.research.bench.figures import notes, tables, to_json
from fuels.research.bench.floor import FLOORS, _products, epoch_flop
from fuels.research.bench.measure import Race, race
from fuels.research.bench.ours import Ours
from fuels.research.bench.process import Endpoint, RivalProcess
from fuels.research.bench.work import Sizes, make_dataset
from helpers.commands import Fuels

TINY = Sizes(clients=5, sample=3, hidden=8, days=10, train=7, members=6, pairs=4)
PAPER = replace(Sizes(), clients=4, sample=1)
SPEEDS = {"speedup_vs_eager", "speedup_vs_flower", "speedup_vs_pfl", "times_floor"}


# -- the same work -----------------------------------------------------------------------------


def test_the_work_is_the_papers() -> None:
    dataset = make_dataset(PAPER)
    assert dataset.target[0, : dataset.split.train].sum() == 888 == 24 * PAPER.batches
    assert epoch_flop(rows=48, batches=37, hidden=128) == 12 * 37 * 2 * 48 * 128 * 384


@pytest.mark.parametrize("sizes", [TINY, PAPER], ids=["tiny", "paper"])
def test_a_fuels_client_of_the_rivals_computes_what_ours_does(sizes: Sizes) -> None:
    """In double precision, for the formulas as printed lose digits; one round without PR and NR,
    one with them."""
    ours, start = Ours(sizes, threads=1), Start(sizes)
    data = start.clients[0]
    double = {name: getattr(data, name).double() for name in ("x", "x_next", "y")}
    model, W = start.model().double(), start.filter(data.id).detach().double().requires_grad_()
    adam = new_adam([*model.parameters(), W])
    first = {name: value.clone() for name, value in model.state_dict().items()}
    for round_number in (1, 2):
        given = ours.given()
        assert (data.id in given) == (round_number == 2)
        sides = [side.double() for side in unit_rows(given, data.id)]
        prototype = fuels_epoch(model, W, adam, replace(data, **double), round_number, sides)
        _, uploaded = ours.turn("fuels", round_number)
        np.testing.assert_allclose(uploaded[0], prototype.numpy(), rtol=0, atol=1e-5)
        parts = ours.sites["fuels"].parts
        named = ours.methods["fuels"].facts.network.tensors(parts, 0)
        for name, value in model.state_dict().items():
            assert torch.allclose(named[name].double(), value, rtol=0, atol=1e-5), name
            assert not torch.allclose(first[name], value, rtol=0, atol=1e-4), name
        assert torch.allclose(parts["filter"][0].double(), W.detach().flatten(), rtol=0, atol=1e-5)


def test_an_eager_round_gives_what_ours_gives() -> None:
    ours, eager = Ours(TINY, threads=1), Eager(TINY, threads=1)
    for method in ("fuels", "fedavg"):
        seconds, uploaded = ours.turn(method, 1)
        rival_seconds, made = eager.turn(method, 1, {})
        assert uploaded.shape == made.shape
        assert seconds > 0 and rival_seconds > 0
        np.testing.assert_allclose(made, uploaded, rtol=0, atol=1e-5)


def test_floor_products_are_products() -> None:
    rng = np.random.default_rng(0)
    W, h = (rng.normal(size=s).astype(np.float32) for s in ((24, 8), (8, 16)))
    out = np.zeros((24, 16), dtype=np.float32)
    _products(W, h, out, 1)
    np.testing.assert_allclose(out, W @ h, rtol=1e-5, atol=1e-6)
    for make in FLOORS.values():
        assert 0 < make(1, 16, 1, 8)() < 1e3


def test_divergences_are_scipys() -> None:
    both = Divergences(TINY, threads=1)
    assert both.ours() > 0 and both.scipy() > 0
    P = both.P.astype(np.float64)
    for i, j in both.pairs:
        assert i != j
        assert both.table[i, j] == pytest.approx(both.by_scipy(P[i], P[j]), abs=1e-6)


# -- figures -----------------------------------------------------------------------------------


def by_hand() -> Race:
    turns = [
        {("fuels", "ours"): 20.0, ("fuels", "eager"): 200.0, ("fuels", "floor"): 10.0},
        {("fuels", "ours"): 25.0, ("fuels", "eager"): 300.0, ("fuels", "floor"): 10.0},
        {("fuels", "ours"): 40.0, ("fuels", "eager"): 320.0, ("fuels", "floor"): 10.0},
    ]
    turns[0] |= {("jsd", "ours"): 2.0, ("jsd", "scipy"): 300.0, ("fuels", "flower"): 160.0}
    turns[1] |= {("jsd", "ours"): 2.0, ("jsd", "scipy"): 240.0}
    turns[2] |= {("jsd", "ours"): 3.0, ("jsd", "scipy"): 270.0}
    clients = {"ours": 5, "eager": 3, "flower": 3}
    return Race(TINY, 2, turns, clients, skipped={"flower": "it fell over"}, eager_threads=1)


def test_speedups_are_medians_of_turns() -> None:
    found = to_json(by_hand(), {})
    fuels = found["fuels"]
    assert fuels["speedup_vs_eager"] == 10.0  # of 10, 12 and 8
    assert fuels["spread"]["speedup_vs_eager"] == [8.0, 12.0]
    assert fuels["times_floor"] == 2.5
    assert fuels["spread"]["times_floor"] == [2.0, 4.0]
    assert fuels["ms_per_client_epoch"]["eager"] == {
        "median": 300.0, "low": 200.0, "high": 320.0, "clients": 3, "scaled": True,
    }  # fmt: skip
    assert fuels["ms_per_client_epoch"]["ours"]["scaled"] is False
    assert found["jsd_speedup_vs_scipy"] == 120.0
    # Flower fell out after the first turn, and nobody took part in FedAvg.
    assert fuels["speedup_vs_flower"] is None
    assert found["fedavg"]["speedup_vs_eager"] is None
    assert found["skipped"] == {"flower": "it fell over"}


def test_tables_show_the_medians_and_who_was_scaled() -> None:
    text = "\n".join(table.to_plain() for table in tables(by_hand()))
    lines = [" ".join(line.split()) for line in text.splitlines()]
    eager = "eager PyTorch, client after client 3 clients, scaled 300 200 to 320 10 8 to 12"
    assert eager in lines
    assert "ours 5 clients 25 20 to 40" in lines
    assert "Flower's simulation on Ray: it fell over" in notes(by_hand())
    assert "FUELS: ours takes 2.5 times the floor (2 to 4)" in notes(by_hand())


def test_a_race_without_rivals_has_all_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower_rival, "available", lambda: False)
    monkeypatch.setattr(pfl_rival, "available", lambda: False)
    said: list[str] = []
    done = race(TINY, threads=1, turns=2, say=said.append)
    found = json.loads(json.dumps(to_json(done, {"cpu": "some"})))
    for method in ("fuels", "fedavg"):
        assert found[method].keys() >= SPEEDS
        assert found[method]["speedup_vs_eager"] > 0
        assert found[method]["times_floor"] > 0
        assert found[method]["difference_from_ours"]["eager"] < 1e-5
    assert found["jsd_speedup_vs_scipy"] > 0
    assert found["turns"] == 2
    assert sum(line.startswith("turn ") for line in said) == 2
    assert found["skipped"].keys() == {"flower", "pfl"}
    assert all(
        'pip install "fuels-forecast[bench]"' in reason for reason in found["skipped"].values()
    )


def test_a_race_ends_in_time() -> None:
    done = race(TINY, threads=1, turns=1000, seconds=0.0, skip=["flower", "pfl", "eager"])
    assert len(done.turns) == 1


class Fainting:
    """A rival that gives up in its second turn."""

    clients = 3
    closed = 0

    def __init__(self, sizes: Sizes, threads: int) -> None:
        self.width = 2 * sizes.hidden

    def turn(self, method: str, round_number: int, given: Any) -> Any:
        if round_number == 3:
            raise FuelsError("flower has ended: out of memory")
        return 1.0, np.zeros(1, dtype=np.float32)

    def close(self) -> None:
        Fainting.closed += 1


def test_a_rival_that_fails_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower_rival, "available", lambda: True)
    monkeypatch.setattr(flower_rival, "Flower", Fainting)
    done = race(TINY, threads=1, turns=3, skip=["pfl", "eager", "jsd", "floor"])
    assert len(done.turns) == 3
    assert done.skipped["flower"] == "flower has ended: out of memory"
    assert done.series(("fuels", "flower")) == []
    assert Fainting.closed == 1


# -- processes ---------------------------------------------------------------------------------


def serve_badly(endpoint: Endpoint, manner: str) -> None:
    if manner == "at once":
        raise ValueError("no such thing\nand more")
    for _ in endpoint.orders():
        print("these are the last words", flush=True)
        os._exit(3)


def test_a_process_that_fails_or_dies_says_why() -> None:
    failing = RivalProcess("rival", serve_badly, "at once")
    dying = RivalProcess("rival", serve_badly, "later")
    try:
        with pytest.raises(FuelsError, match=r"^rival failed: no such thing$"):
            failing.ask(("fuels", 1, {}))
        dying.ask(("fuels", 1, {}))
        with pytest.raises(FuelsError, match=r"^rival has ended: these are the last words$"):
            dying.answer()
    finally:
        failing.close()
        dying.close()
    assert not multiprocessing.active_children()
    assert not failing.log.exists()


def family(pid: int) -> set[int]:
    """A process and all below it, where the system lists them."""
    parents = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            after_name = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        parents[int(folder.name)] = int(after_name[1])
    found, size = {pid}, 0
    while size < len(found):
        size = len(found)
        found |= {child for child, parent in parents.items() if parent in found}
    return found


def test_flower_does_the_same_work_and_ends_its_processes() -> None:
    if not flower_rival.available():
        pytest.skip("flwr or ray is not installed")
    ours, flower = Ours(TINY, threads=1), flower_rival.Flower(TINY, threads=1)
    try:
        for method, round_number in (("fuels", 1), ("fedavg", 1), ("fuels", 2)):
            given = ours.given()
            seconds, made = flower.turn(method, round_number, given)
            _, expected = ours.turn(method, round_number)
            np.testing.assert_allclose(made, expected, rtol=0, atol=1e-5, err_msg=method)
            assert 0 < seconds < 60
        started = family(flower.process.process.pid or 0)
    finally:
        flower.close()
    assert flower.process.process.exitcode == 0
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in started) and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not any(Path(f"/proc/{pid}").exists() for pid in started)


def test_pfl_does_the_same_work() -> None:
    if not pfl_rival.available():
        pytest.skip("pfl is not installed")
    ours, pfl = Ours(TINY, threads=1), pfl_rival.Pfl(TINY, threads=2)
    try:
        assert [len(share) for share in pfl.shares] == [2, 1]
        _, expected = ours.turn("fedavg", 1)
        _, made = pfl.turn("fedavg", 1, {})
        np.testing.assert_allclose(made, expected, rtol=0, atol=1e-5)
        seconds, again = pfl.turn("fedavg", 2, {})
        assert 0 < seconds < 60
        assert not np.allclose(again, made, atol=1e-5)  # it went on from its mean
    finally:
        pfl.close()
    assert not multiprocessing.active_children()


# -- the command -------------------------------------------------------------------------------


def test_command_prints_and_writes_json(fuels: Fuels) -> None:
    words = ("--clients", "4", "--turns", "1", "--threads", "1", "--skip", "eager,flower,pfl,jsd")
    code, out, err = fuels("bench", *words, "--json", "--out", "bench.json")
    assert code == 0, err
    found = json.loads(out)
    assert found == json.loads(Path("bench.json").read_text())
    assert found["work"]["batches"] == 37
    assert found["threads"] == 1
    assert found["machine"]["versions"]["torch"] == torch.__version__
    assert found["fuels"]["times_floor"] > 1
    assert found["jsd_speedup_vs_scipy"] is None
    assert "turn 1 of 1: fuels ours" in err


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--skip", "flowr"), "--skip flowr is unknown; did you mean flower?"),
        (("--turns", "0"), "--turns must be at least 1, not 0"),
        (("--clients", "2"), "clients must be at least 4, not 2"),
        (("--out", "nowhere/bench.json"), "the folder nowhere does not exist"),
        (("--threads", "-1"), "--threads takes a positive integer or all"),
    ],
)
def test_command_refuses_in_words(fuels: Fuels, words: tuple[str, ...], sentence: str) -> None:
    code, out, err = fuels("bench", *words)
    assert code == 1
    assert sentence in err
    assert "Traceback" not in err
    assert not out


def test_every_rival_can_be_skipped() -> None:
    done = race(TINY, threads=1, turns=1, skip=measure.SKIPPABLE)
    assert done.skipped.keys() == set(measure.SKIPPABLE)
    assert done.turns[0].keys() == {("fuels", "ours"), ("fedavg", "ours")}
