"""Groups of similar clients under a guarantee: each has a live mean, formed from released days."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant

from fuels.config import Engine, Privacy, Settings, Sharing, merge, with_preset
from fuels.data.synthetic import synthesise
from fuels.errors import FuelsError
from fuels.experts.ensemble import Ensemble
from fuels.experts.history import History, make_history
from fuels.experts.private import PrivateExperts
from fuels.federation.flower.flower_app import federated
from fuels.privacy.ledger import Entry, Ledger, Release
from fuels.report.privacy import revealed
from fuels.runs.run import run
from fuels.runs.settings import resolve
from fuels.sharing.protection import DAY, LEDGER, MEAN, OWN, STATISTICS, Protection, budget_of
from fuels.sharing.similar_clients import grouped
from fuels.storage.models import load_models
from fuels.storage.run_folder import RunFolder

CLIENTS, LEAST, END = 16, 5, 18 * 24
PANEL = synthesise("net", clients=CLIENTS, days=24, seed=3)
IDS = PANEL.ids
SHARING = Sharing(statistics=True, live_mean=True, min_clients=LEAST)
PRIVACY = Privacy(epsilon=8.0, groups=2)
Floats = np.ndarray


class Watched(Ledger):
    """A ledger that remembers what the clients added to each release."""

    added: dict[str, Floats]

    def release(
        self,
        release: Release,
        contributions: Iterable[Floats],
        about: Mapping[str, Any] | None = None,
        **noise: int,
    ) -> Entry:
        parts = list(contributions)
        found = self.__dict__.setdefault("added", {})
        found.setdefault(release.name, np.stack(parts))  # the training part comes first
        return super().release(release, parts, about, **noise)


def history(values: Floats = PANEL.values) -> tuple[History, tuple[Floats, Floats]]:
    mean, std = PANEL.values[:END].mean(axis=0), PANEL.values[:END].std(axis=0)
    return make_history(replace(PANEL, values=values), 24, mean, std), (mean, std)


def experts(settings: Privacy = PRIVACY, ledger: Ledger | None = None) -> PrivateExperts:
    made, scale = history()
    kept = Protection(settings, ledger or Ledger(budget_of(settings)), "run")
    return PrivateExperts.protected(SHARING, kept, made.times(END, END + 1)[0], scale)


def ledger_of(shared: PrivateExperts) -> Ledger:
    assert shared.protection is not None
    return shared.protection.ledger


def spend(shared: PrivateExperts, of: History) -> History:
    """Release everything of a run; the history with the live means that the clients hear."""
    made = shared.with_live_mean(of, IDS)
    assert shared.coefficients(made, IDS, END)
    return made


def test_each_group_has_a_live_mean_of_its_own() -> None:
    shared = experts()
    found = spend(shared, history()[0])
    assert found.live is not None and shared.heard is not None
    sizes = shared.guarantee()["groups"]
    assert sum(sizes) == CLIENTS and min(sizes) >= LEAST and len(sizes) == 2
    own = [found.live[shared.heard == g] for g in range(2)]
    assert all((each == each[0]).all() for each in own)
    assert not np.array_equal(own[0][0], own[1][0])
    for each, group in zip(own, range(2), strict=True):
        mean = found.observed[shared.heard == group].mean(axis=0)
        assert np.corrcoef(each[0], mean)[0, 1] > 0.85


def test_groups_depend_on_released_days_only(tmp_path: Path) -> None:
    """With the same releases and any other data, all that leaves a client uses the same groups."""
    path = tmp_path / LEDGER
    shared = experts(ledger=Ledger(budget_of(PRIVACY), path))
    shared.with_live_mean(history()[0], IDS)
    [own], [day] = (ledger_of(shared).find("run", name) for name in (OWN, DAY))
    assert day.about["groups"] == grouped(own.values, 2, LEAST).tolist()
    before = path.read_bytes()
    other = experts(ledger=Ledger(budget_of(PRIVACY), path))
    other.with_live_mean(history(PANEL.values[:, ::-1].copy())[0], IDS)
    assert path.read_bytes() == before
    assert shared.guarantee() == other.guarantee()
    assert shared.heard is not None and other.heard is not None
    assert not np.array_equal(shared.heard, other.heard)  # a client's exact day: its own business


@pytest.mark.parametrize("unit", ["hour", "day"])
@pytest.mark.parametrize("relation", ["removed", "replaced"])
def test_neighbours_change_no_release_by_more_than_its_sensitivity(
    unit: str, relation: str, tmp_path: Path
) -> None:
    """From the same own days, so that groups are given; what follows is compared."""
    settings = replace(PRIVACY, unit=unit, relation=relation, scale="1500,900")
    path, rng = tmp_path / LEDGER, np.random.default_rng(5)
    Ledger(budget_of(settings), path)
    first = experts(settings, Watched(budget_of(settings), path))
    spend(first, history()[0])
    lines, added = path.read_bytes().splitlines(keepends=True), ledger_of(first).added  # type: ignore[attr-defined]
    for trial in range(4):
        values, client = PANEL.values.copy(), int(rng.integers(CLIENTS))
        length = {"hour": 1, "day": 24}[unit]
        begin = int(rng.integers(0, END // length)) * length
        values[begin : begin + length, client] = (
            np.nan if relation == "removed" else 9e4 * rng.random()
        )
        for kept in ([OWN], [OWN, DAY], [OWN, DAY, MEAN]):
            copy = tmp_path / f"{trial}-{len(kept)}"
            copy.write_bytes(b"".join(lines[: 1 + len(kept)]))
            watched = Watched(budget_of(settings), copy)
            second = experts(settings, watched)
            spend(second, history(values)[0])
            fresh = next(n for n in (DAY, MEAN, STATISTICS) if n not in kept)
            [entry] = [e for e in watched.find("run", fresh) if e.release.last <= entry_end(first)]
            assert watched.added[fresh].any()
            change = np.linalg.norm((watched.added[fresh] - added[fresh]).sum(axis=0))
            assert change <= entry.release.sensitivity * (1 + 1e-9)


def test_what_a_client_adds_does_not_depend_on_the_group_that_it_hears(tmp_path: Path) -> None:
    """The group that it hears follows from its exact day, which no noise protects."""
    path = tmp_path / LEDGER
    first = experts(ledger=Watched(budget_of(PRIVACY), path))
    spend(first, history()[0])
    lines, added = path.read_bytes().splitlines(keepends=True), ledger_of(first).added  # type: ignore[attr-defined]
    assert first.heard is not None
    for kept, fresh in ((3, MEAN), (5, STATISTICS)):
        copy = tmp_path / fresh
        copy.write_bytes(b"".join(lines[: 1 + kept]))
        watched = Watched(budget_of(PRIVACY), copy)
        second = experts(ledger=watched)
        second.heard = 1 - first.heard
        assert len(watched.entries) == kept
        spend(second, history()[0])
        np.testing.assert_array_equal(watched.added[fresh], added[fresh])
    [day] = ledger_of(first).find("run", DAY)
    blocks = added[MEAN].reshape(CLIENTS, 2, -1)
    for own, group in zip(blocks, day.about["groups"], strict=True):
        assert own[group].any() and not own[1 - group].any()


def entry_end(shared: PrivateExperts) -> int:
    [day] = ledger_of(shared).find("run", DAY)
    return day.release.last


def test_the_ledger_with_own_days_is_what_dp_accounting_says() -> None:
    shared = experts()
    spend(shared, history()[0])
    ledger = ledger_of(shared)
    [own] = ledger.find("run", OWN)
    covering = [e.release for e in ledger.entries.values() if e.release.first <= own.release.first]
    assert {r.name for r in covering} == {"scale", OWN, DAY, MEAN, STATISTICS}
    theirs = PLDAccountant()
    theirs.compose(
        dp_accounting.ComposedDpEvent(
            [dp_accounting.GaussianDpEvent(release.multiplier) for release in covering]
        )
    )
    assert ledger.epsilon == pytest.approx(theirs.get_epsilon(1e-5), abs=1e-3)
    assert 7.9 < ledger.epsilon <= 8.0
    shares = {r["name"]: r["share_of_budget"] for r in shared.guarantee()["releases"]}
    assert shares[OWN] == pytest.approx(0.1 / 1.1, abs=1e-4)
    assert sum(shares.values()) == pytest.approx(1.0, abs=1e-3)


def test_where_no_groups_are_large_enough_all_clients_have_one_live_mean() -> None:
    shared = experts(replace(PRIVACY, groups=3))
    shared.min_clients = 6
    with pytest.warns(UserWarning, match="all clients have one live mean"):
        found = shared.with_live_mean(history()[0], IDS)
    assert found.live is not None and (found.live == found.live[0]).all()
    assert shared.guarantee()["groups"] == [CLIENTS]


def test_a_client_that_the_run_has_not_seen_hears_the_group_it_resembles() -> None:
    shared, whole = experts(), history()[0]
    members = shared.with_live_mean(whole, IDS)
    assert shared.heard is not None and members.live is not None
    found = shared.heard_by(whole.take(np.array([2, 7])), whole, IDS)
    assert found.live is not None and len(found.live) == 2
    assert all((live == members.live).all(axis=1).any() for live in found.live)


def test_a_run_in_groups_states_them_and_can_be_loaded(tmp_path: Path) -> None:
    changes = {
        "windows": {"split": "18/2/4"},
        "model": {"hidden": 4},
        "training": {"rounds": 1},
        "sharing": {"min_clients": LEAST},
        "privacy": {"epsilon": 8, "groups": 2},
    }
    settings = merge(with_preset(Settings(), "private", "test"), changes, "test")
    folder = RunFolder(tmp_path / "run")
    outcome = run(resolve(settings), Engine(threads=1), folder, panel=PANEL, plots=False)
    stated = outcome.summary["privacy"]
    assert sum(stated["groups"]) == CLIENTS
    assert stated["epsilon_spent"] <= 8.0
    said = " ".join(revealed(outcome.summary))
    assert "Each client released a histogram of its values and its mean day individually" in said
    assert "2 groups of" in said
    models, before = load_models(folder.models), (folder.path / LEDGER).read_bytes()
    loaded = Ensemble.load(folder.mixture, models)
    assert isinstance(loaded.sharing, PrivateExperts) and loaded.sharing.heard is not None
    made = loaded.with_live_mean(loaded.history(PANEL))
    part = replace(PANEL, values=PANEL.values[20 * 24 :], start=PANEL.times[20 * 24])
    late = loaded.with_live_mean(loaded.history(part))  # without the days that groups came from
    assert made.live is not None and late.live is not None
    np.testing.assert_array_equal(late.live[:, -24:], made.live[:, -24:])
    assert (folder.path / LEDGER).read_bytes() == before
    few = merge(settings, {"privacy": {"groups": 4}}, "test")
    with pytest.raises(FuelsError, match="groups = 4 needs 20 clients, 5 in each group"):
        run(resolve(few), Engine(threads=1), RunFolder(tmp_path / "few"), panel=PANEL, plots=False)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"privacy": {"groups": 0}}, "privacy.groups must be at least 1"),
        ({"privacy": {"groups": 2, "epsilon": 0}}, "needs --privacy epsilon=4"),
        ({"privacy": {"groups": 2}, "sharing": {"live_mean": False}}, "sharing.live_mean"),
    ],
)
def test_groups_that_nothing_would_use_are_refused(changes: dict[str, object], said: str) -> None:
    settings = merge(with_preset(Settings(), "private", "test"), changes, "test")
    with pytest.raises(FuelsError, match=said):
        resolve(settings)


def test_a_federation_refuses_groups_in_one_sentence() -> None:
    settings = merge(with_preset(Settings(), "private", "test"), {"privacy": {"groups": 2}}, "test")
    with pytest.raises(FuelsError, match=r"privacy\.groups is for one machine"):
        federated(settings, "run config")
