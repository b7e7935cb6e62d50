"""A live series with random failures: no wrong sum, and forecasts that lose little."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from fuels.experts.ensemble import new_ensemble
from fuels.experts.personal_model import history_for
from fuels.federation.flower.live_messages import SUM
from fuels.federation.flower.live_record import LiveRecord
from fuels.sharing.live_mean import contribution, estimated
from fuels.sharing.received import ReceivedMean
from helpers.live_world import TRAINED, LiveWorld

FAILING = 0.2  # of all site-steps: half before the site is ready, half after it has contributed


def live_steps(world: LiveWorld, steps: int) -> None:
    """Steps in each of which a site may be killed, to return with the next one."""
    rng = np.random.default_rng(0)
    for _ in range(steps):
        draws = dict(zip(world.ids, rng.random(len(world.ids)), strict=True))
        before = {site for site, draw in draws.items() if draw < FAILING / 2}
        during = {site for site, draw in draws.items() if FAILING / 2 <= draw < FAILING}
        for site in before:
            world.network.kill(site)
        world.network.lose = {(site, SUM) for site in during}
        world.give()
        world.turn(2)
        for site in during:
            world.network.kill(site)
        world.turn(22)
        world.network.lose.clear()
        for site in before | during:
            world.network.restart(site)
        world.turn(2)


def check_sums(world: LiveWorld, steps: int) -> int:
    """Every sum is that of a set's contributions, the same everywhere; returns their number."""
    record = LiveRecord.load(world.run_folder)
    received = {site: world.received(site) for site in world.ids}
    found = 0
    for number, (total, count) in enumerate(record.sums[-steps:].tolist()):
        at = number - steps
        assert {mean.total[at] for mean in received.values()} == {total} or np.isnan(total)
        if np.isnan(total):
            continue
        found += 1
        own = {site: contribution(mean.own[:, at]).sum(axis=0) for site, mean in received.items()}
        there = [site for site in own if own[site][1] > 0]
        added = np.sum([own[site] for site in there], axis=0)
        assert np.allclose(added, [total, count], rtol=0, atol=1e-6)
        assert len(there) >= 3
    for site in world.ids:  # one reply for each step, however often it was asked
        assert len(set(world.network.sums(site))) <= len(record.sums)
    return found


def test_a_day_with_failures(tmp_path: Path) -> None:
    world = LiveWorld(tmp_path / "metro", {"a": 4, "b": 4, "c": 4, "d": 4})
    world.turn(1)
    live_steps(world, 8)
    found = check_sums(world, 8)
    assert 2 <= found < 8
    assert world.live.record.next == world.live.record.first + 9 * 3600
    assert all("no reply" in each["reason"] for each in world.live.record.skipped)


@pytest.mark.nightly
def test_a_week_with_failures(tmp_path: Path) -> None:
    """What the failures cost; `pytest -m nightly -s` prints it."""
    world = LiveWorld(tmp_path / "metro", {"a": 10, "b": 10, "c": 10, "d": 10}, days=7)
    world.turn(1)
    steps = 7 * 24
    live_steps(world, steps)
    found = check_sums(world, steps)
    errors = week_errors(world, {site: world.received(site) for site in world.ids}, steps)
    never, some, whole = errors["no mean"], errors["failures"], errors["every mean"]
    print(f"\n{found} of {steps} steps have a sum; mean squared error of one step ahead:")
    for name, error in errors.items():
        print(f"  {name}: {error:.4f} ({error / whole - 1:+.2%})")
    assert 0.4 * steps < found < 0.9 * steps
    assert whole <= some * 1.002
    assert some < 1.5 * never


def week_errors(
    world: LiveWorld, received: Mapping[str, ReceivedMean], steps: int
) -> dict[str, float]:
    """One-step errors of the last steps with every live mean, with those received, with none.

    A missing mean is estimated, as in every run that receives one, or left missing.
    """
    values = replace(world.panel, values=world.panel.values[: TRAINED * 24 + steps])
    history = history_for(world.models, values)

    def error(live: np.ndarray | None, period: int = 0) -> float:
        sharing = world.settings.sharing
        ensemble = new_ensemble(world.models, history, world.end, title="FUELS", sharing=sharing)
        seen = ensemble.with_live_mean(history)
        if live is not None:
            assert seen.live is not None
            whole = np.concatenate([seen.live[:, :-steps], live], axis=1)
            seen = replace(seen, live=estimated(whole, period) if period else whole)
        backtest = ensemble.run(seen)
        assert backtest is not None
        missed = backtest.mixed.combined[:, -steps:] - history.observed[:, -steps:]
        return float(np.nanmean(missed**2))

    first = history.times(history.length - steps, history.length)[0]
    with_failures = np.concatenate(
        [received[site].seen(world.ids[site], first, steps) for site in world.ids]
    )
    order = [client for site in world.ids for client in world.ids[site]]
    rows = [order.index(client) for client in world.models.ids]
    nothing = np.full(with_failures.shape, np.nan)
    return {
        "every mean": error(None),
        "failures": error(with_failures[rows], history.period),
        "failures, nothing estimated": error(with_failures[rows]),
        "no mean": error(nothing),
    }
