"""The audit: it finds planted leaks, finds nothing in random uploads, and repeats the run."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom
from typer.testing import CliRunner

from fuels.cli.commands import app
from fuels.config import Engine, Privacy, Settings, merge
from fuels.data.synthetic import synthesise
from fuels.errors import FuelsError
from fuels.privacy.accountant import loss_for
from fuels.research.audit import audit as work
from fuels.research.audit import noised_sums, sums
from fuels.research.audit.membership import (
    CANDIDATES,
    Coins,
    auc,
    linkage,
    membership,
    recognised,
    toss,
    tpr,
)
from fuels.research.audit.observed import Seen, mean_days, observe, products
from fuels.research.audit.one_run import epsilon_bound, p_value
from fuels.research.audit.own_data import first_weekday, invented, own_dataset
from fuels.research.audit.reconstruct import Reached, attacks, chance, components, r2
from fuels.research.experiments import audit as audit_experiment
from fuels.runs.build import build
from fuels.runs.settings import resolve
from fuels.storage.run_folder import RunFolder
from helpers.inspection import context_of, small_panel
from helpers.panels import make_panel
from helpers.runs import do_run

ENGINE = Engine(threads=1)
PANEL = synthesise("net", clients=16, days=20, seed=0)
RNG = np.random.default_rng(7)


def settings(method: str = "fuels", **changes: Any) -> Settings:
    small = {
        "method": method,
        "windows": {"split": "12/0/4"},
        "training": {"rounds": 3},
        "model": {"hidden": 8},
    }
    return merge(merge(Settings(), small, "test"), changes, "test")


def seen_with(uploads: np.ndarray, own: np.ndarray, days: np.ndarray, own_days: np.ndarray) -> Seen:
    """Uploads [round, client, row, width] as an audit sees them."""
    grams = [
        products({"prototype": a}, {"prototype": b}) for a, b in zip(uploads, own, strict=True)
    ]
    return Seen(
        ids=tuple(f"c{i}" for i in range(uploads.shape[1])),
        days=days,
        own_days=own_days,
        rounds=tuple(range(1, len(uploads) + 1)),
        grams=np.stack(grams),
        prototypes=uploads.astype(np.float32),
        numbers=0.0,
    )


def days_of(clients: int, seed: int) -> np.ndarray:
    """Days with a common shape and a few ways to differ, as those of real cells."""
    rng = np.random.default_rng(seed)
    hours = np.arange(24)
    ways = np.stack([np.cos(2 * np.pi * (h * hours / 24 + 0.2 * h)) / h for h in (1, 2, 3)])
    common = np.cos(2 * np.pi * (hours - 15) / 24)
    found: np.ndarray = common + 0.4 * rng.normal(size=(clients, 3)) @ ways
    return found


def planted(days: np.ndarray, rounds: int, noise: float = 0.0) -> np.ndarray:
    """Prototypes whose row b is the value of hour b - 1 in a fixed direction."""
    direction = np.random.default_rng(1).normal(size=16) / 4
    rng = np.random.default_rng(abs(int(1e6 * days[0, 0])))  # other noise for other days
    rows = np.roll(days, 1, axis=1)[None, :, :, None] * direction
    return np.asarray(rows + noise * rng.normal(size=(rounds, *rows.shape[1:])))


# -- reconstruction ----------------------------------------------------------------------------


def by_name(found: list[Reached]) -> dict[str, Reached]:
    return {each.attacker: each for each in found}


def test_a_planted_leak_is_found_by_every_attacker() -> None:
    days, own = days_of(30, 0), days_of(40, 1)
    seen = seen_with(planted(days, 2), planted(own, 2), days, own)
    found = by_name(attacks(seen))
    assert set(found) == {"informed", "5 clients", "15 clients", "blind", "distances"}
    assert found["informed"].one > 0.99 and found["15 clients"].every > 0.99
    assert found["blind"].one > 0.8 and found["distances"].one > 0.9
    assert chance(seen) < 0.25


def test_nothing_is_found_in_random_uploads() -> None:
    days, own = days_of(60, 0), days_of(60, 1)
    shape = (3, 60, 24, 16)
    seen = seen_with(RNG.normal(size=shape), RNG.normal(size=shape), days, own)
    floor = chance(seen)
    assert max(each.best for each in attacks(seen)) < 0.15
    assert floor < 0.15


def test_all_rounds_together_average_noise_away() -> None:
    days, own = days_of(40, 0), days_of(40, 1)
    seen = seen_with(planted(days, 12, 1.0), planted(own, 12, 1.0), days, own)
    found = by_name(attacks(seen))
    assert found["informed"].first < found["informed"].every - 0.2


def test_an_order_of_the_numbers_hides_the_rows_but_not_the_distances() -> None:
    days, own = days_of(30, 0), days_of(30, 1)
    open_, theirs = planted(days, 1), planted(own, 1)
    order = np.random.default_rng(3).permutation(24 * 16)
    hidden = open_.reshape(1, 30, -1)[:, :, order].reshape(open_.shape)
    found = by_name(attacks(seen_with(hidden, theirs, days, own)))
    assert found["blind"].one < 0.5 and found["informed"].one < 0.5
    assert found["distances"].one > 0.9 and found["15 clients"].one > 0.99


def test_r2_is_at_the_best_scale_and_not_below_zero() -> None:
    days = days_of(10, 0)
    assert r2(3 * days + 5, days) == pytest.approx(1.0)
    assert r2(-days, days) == 0.0
    assert r2(np.zeros_like(days), days) == 0.0


def test_component_follows_the_typical_day_one_hour_earlier() -> None:
    days = days_of(5, 2)
    found = components(planted(days, 1)[0].astype(np.float32), days.mean(axis=0))
    for guess, day in zip(found, days, strict=True):
        assert np.corrcoef(guess, day)[0, 1] > 0.999


# -- membership, linkage, the bound ------------------------------------------------------------


def coins_for(clients: int) -> Coins:
    rng = np.random.default_rng(5)
    moves = 0.2 * rng.normal(size=(clients, CANDIDATES, 24))
    heads = rng.random((clients, CANDIDATES)) < 0.5
    return Coins(Settings(), PANEL, heads, moves, days_of(clients, 0))


def test_membership_is_found_where_the_days_are_sent_and_not_in_random_uploads() -> None:
    coins, own = coins_for(60), days_of(300, 1)
    days = coins.without + (coins.heads[:, :, None] * coins.moves).sum(axis=1)
    own = own + 0.4 * np.random.default_rng(2).normal(size=own.shape)
    told = membership(seen_with(planted(days, 1), planted(own, 1), days, own), coins)
    assert told.auc > 0.95 and told.tpr > 0.6 and told.epsilon > 1.5 and told.coins == 240
    shape = (1, 60, 24, 16)
    nothing = membership(
        seen_with(RNG.normal(size=shape), RNG.normal(size=(1, 300, 24, 16)), days, own), coins
    )
    assert abs(nothing.auc - 0.5) < 0.12 and nothing.epsilon < 0.5


def test_auc_and_true_positives_by_hand() -> None:
    score, member = np.array([4.0, 3.0, 2.0, 1.0]), np.array([True, False, True, False])
    assert auc(score, member) == 0.75
    assert tpr(score, member) == 0.5  # one of two members is above every other
    assert auc(np.zeros(4), member) == 0.5


def test_clients_are_recognised_by_what_is_read_of_their_days() -> None:
    days, own = days_of(20, 0), days_of(20, 1)
    seen = seen_with(planted(days, 1), planted(own, 1), days, own)
    assert linkage(seen, seen) == 1.0
    other = seen_with(RNG.normal(size=(1, 20, 24, 16)), planted(own, 1), days, own)
    assert linkage(seen, other) <= 0.3
    assert recognised(days, days[::-1]) == 0.0


def test_bound_is_what_the_guesses_contradict_and_no_more() -> None:
    rng = np.random.default_rng(11)
    member = rng.random(2000) < 0.5
    assert epsilon_bound(np.where(member, 1.0, -1.0), member) > 5
    too_high, epsilon = 0, 1.0
    for _ in range(20):  # randomised response has exactly this epsilon
        told = np.where(rng.random(2000) < np.exp(epsilon) / (1 + np.exp(epsilon)), member, ~member)
        bound = epsilon_bound(np.where(told, 1.0, -1.0), member)
        assert bound > 0.7
        too_high += bound > epsilon
    assert too_high <= 1


def test_p_value_without_delta_is_the_binomial_tail() -> None:
    success = np.exp(0.5) / (1 + np.exp(0.5))
    assert p_value(0.5, 0.0, 100, 50, 40) == pytest.approx(binom.sf(39, 50, success))
    assert p_value(0.5, 1e-3, 100, 50, 40) > p_value(0.5, 0.0, 100, 50, 40)
    assert p_value(0.5, 1e-5, 100, 50, 0) == 1.0


def test_tossed_days_are_missing_and_their_moves_add_up() -> None:
    with build(settings(), ENGINE, PANEL) as job:
        dataset = job.dataset
    coins = toss(resolve(settings()), dataset)
    gone = np.isnan(coins.panel.values) & ~np.isnan(dataset.panel.values)
    assert gone.sum() == 24 * (~coins.heads).sum() > 0
    again = build(coins.settings, ENGINE, coins.panel).dataset
    expected = coins.without + (coins.heads[:, :, None] * coins.moves).sum(axis=1)
    assert np.abs(mean_days(again) - expected).max() < 0.12  # not exact: the scale changes too
    assert np.abs(coins.moves).max() > 0.02


# -- whole audits ------------------------------------------------------------------------------


def test_the_first_training_is_the_run() -> None:
    """Its uploads, and the server's state, are those of an unobserved run."""
    seen = observe(settings(), ENGINE, PANEL)
    assert seen.job is not None and seen.prototypes is not None
    with build(settings(), ENGINE, PANEL) as job:
        job.loop.run()
    np.testing.assert_array_equal(job.loop.server.prototypes, seen.prototypes[-1])
    np.testing.assert_array_equal(job.loop.val_mse, seen.job.loop.val_mse)


@pytest.mark.parametrize("method", ["fuels", "fedavg", "fedrep"])
def test_an_audit_of_each_kind_of_upload(method: str) -> None:
    done = work.audit(settings(method), ENGINE, PANEL)
    informed, blind = done.of("informed"), done.of("blind")
    assert informed is not None and (blind is None) == (method != "fuels")
    assert informed.best > done.chance + 0.1  # the day is there to be read
    if method == "fuels":
        assert informed.best > 0.8 and blind is not None and blind.best > 0.6
    assert done.sums[0] < 1e-9 and done.sums[15] > 0.98
    assert 0 <= done.membership.auc <= 1 and done.membership.coins >= 16
    assert work.Audit.from_dict(json.loads(json.dumps(done.to_dict()))) == done


def test_the_secret_and_noise_and_fewer_rounds_hide_the_day() -> None:
    hidden = settings(
        privacy={"secret": True, "first": 2, "every": 5},
        options={"noise": "gaussian", "noise_scale": 2.0},
    )
    seen = observe(hidden, ENGINE, PANEL)
    assert seen.rounds == (2,) and seen.numbers == 24 * 16
    found = by_name(attacks(seen))
    assert found["informed"].best < 0.3 and found["blind"].best < 0.3


def test_attackers_add_no_noise_to_their_own_uploads() -> None:
    """So they learn from clean ones, and read through noise that every round draws again."""
    noisy = settings(options={"noise": "gaussian", "noise_scale": 0.5})
    seen = observe(noisy, ENGINE, PANEL)
    own, clean = seen.grams[0][16:, 16:], observe(settings(), ENGINE, PANEL).grams[0]
    np.testing.assert_array_equal(own, clean[16:, 16:])
    assert np.trace(seen.grams[0][:16, :16]) > 2 * np.trace(clean[:16, :16])


def test_sums_reveal_a_client_only_to_who_knows_all_others() -> None:
    with build(settings(), ENGINE, PANEL) as job:
        dataset = job.dataset
    assert sums.reconstruction(dataset, 0) < 1e-9 and sums.reconstruction(dataset, 13) < 1e-9
    assert sums.reconstruction(dataset, 15) > 0.98


def test_noise_hides_an_hour_as_far_as_it_promises_and_a_day_less() -> None:
    from scipy.special import ndtr

    with build(settings(), ENGINE, PANEL) as job:
        dataset = job.dataset
    found = {e: noised_sums.revealed(dataset, Privacy(epsilon=e)) for e in (8.0, 1.0)}
    for epsilon, each in found.items():
        assert 0.5 < each.hour < ndtr(np.sqrt(loss_for(epsilon, 1e-5) / 2)) and each.hour < each.day
    assert found[8.0].reached > found[1.0].reached
    client = noised_sums.revealed(dataset, Privacy(epsilon=1.0, unit="client"))
    assert client.reached < 0.1 and client.day < 0.55


def test_attackers_have_their_own_series_with_the_clock_of_the_panel() -> None:
    panel = replace(PANEL, start=PANEL.start + np.timedelta64(3 * 86400 + 5 * 3600, "s"))
    own = own_dataset(resolve(settings()), panel, 6)
    assert len(own.ids) == 6 and own.panel.values.shape == (panel.length, 6)
    night, noon = own.series[:, 3 + 24], own.series[:, 15 + 24]
    assert (noon > night).all() and first_weekday(panel) == (first_weekday(PANEL) + 3) % 7
    coarse = invented(make_panel(days=6, period=8), 5, 8)
    assert coarse.shape == (48, 5) and np.isfinite(coarse).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"method": "solo"}, "sends nothing"),
        ({"training": {"selection": 0.5}}, "uploads of all clients"),
        ({"data": {"clients": 5}}, "at least 8 clients"),
    ],
)
def test_what_cannot_be_audited_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FuelsError, match=message):
        work.audit(merge(settings(), changes, "test"), ENGINE, PANEL)


def test_the_command_writes_its_files(tmp_path: Path) -> None:
    run = tmp_path / "run"
    chosen = settings(data={"source": "synthetic:net", "clients": 12})
    do_run(run, chosen, synthesise("net", clients=100, days=62, seed=0))
    assert RunFolder(run).finished
    done = CliRunner().invoke(app, ["audit", str(run), "--rounds", "2", "--clients", "10"])
    assert done.exit_code == 0, done.output
    assert "blind" in done.output and "10 clients, 2 rounds" in done.output.replace("\n", " ")
    files = {path.name for path in (run / "audit").iterdir()}
    assert files == {"audit.md", "audit.csv", "audit.json", "audit.png"}
    lost = CliRunner().invoke(app, ["audit", str(tmp_path / "none")])
    assert lost.exit_code == 1 and "config.toml is missing" in str(lost.exception)


def test_the_experiment_shows_what_is_revealed_and_what_it_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = context_of(audit_experiment.EXPERIMENT, tmp_path, small_panel(10, places=False))
    chosen = {"variants": "fuels,sparse-noise,nothing", "sums": "exact,hour-4"}
    context = replace(context, options=chosen, rounds=5)
    found = audit_experiment.EXPERIMENT.result(context)
    rows = {row[0]: row for row in found.tables["audit"].rows}
    plain, noisy, nothing = rows.values()
    assert plain[1] == 5 * noisy[1] and nothing[1] == 0
    assert float(str(plain[2])) > 0.6 > float(str(noisy[2]))
    assert nothing[2] is None and isinstance(nothing[10], float)
    assert "rounds 5, 15, .., noise 2" in found.text[0] and set(found.figures) == {"audit"}
    exact, noised = found.tables["sums"].rows
    assert float(str(exact[2])) > 0.9 > float(str(noised[2])) and exact[3] == "1.00"
    monkeypatch.setattr(audit_experiment, "train", None)  # the second time, from the store
    again = audit_experiment.EXPERIMENT.result(context)
    assert again.tables["audit"].rows == found.tables["audit"].rows
    with pytest.raises(FuelsError, match="unknown secrets; did you mean secret"):
        audit_experiment.run(replace(context, options={**chosen, "variants": "secrets"}))
    for path in (context.store.runs / "audit").iterdir():
        path.write_text("{}")
    with pytest.raises(FuelsError, match="not a result of this experiment"):
        audit_experiment.run(context)
