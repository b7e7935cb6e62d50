"""`fuels privacy plan` and `fuels privacy spent`, and `--privacy` of `fuels run`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fuels.cli.settings import private_preset
from fuels.config import Privacy
from fuels.errors import FuelsError
from fuels.privacy.ledger import Budget, Ledger, Release
from fuels.privacy.sensitivity import Relation, Unit
from fuels.runs.privacy_plan import Sizes, plan
from helpers.commands import SMALL, Fuels


def test_the_plan_uses_the_budget_and_more_clients_need_less_noise_each() -> None:
    few, many = (plan(Sizes(n, 5, 20, 1, Privacy(epsilon=1.0))) for n in (20, 200))
    for found in (few, many):
        assert 0.99 < found.spent <= 1.0
        assert found.accuracy[0].free < found.accuracy[0].noised
    assert few.accuracy[0].noised > many.accuracy[0].noised
    assert [line.noise for line in few.lines] == [line.noise for line in many.lines]


def test_groups_cost_a_share_and_noise_hides_which_clients_are_similar() -> None:
    clear, dim = (plan(Sizes(40, 1, 20, 1, Privacy(epsilon=e, groups=2))) for e in (8.0, 0.5))
    for found in (clear, dim):
        shares = {line.name: line.share for line in found.lines}
        assert shares["own mean day"] == pytest.approx(0.1 / 1.1, rel=1e-3)
        assert sum(shares.values()) == pytest.approx(1.0, rel=1e-3)
    assert clear.similarity is not None and dim.similarity is not None
    assert clear.similarity > 0.8 > 0.4 > dim.similarity
    one = plan(Sizes(40, 1, 20, 1, Privacy(epsilon=8.0)))
    assert one.similarity is None
    live = [next(line for line in p.lines if line.name == "live mean") for p in (one, clear)]
    assert live[1].numbers == 2 * live[0].numbers


def test_colluding_sites_make_the_others_add_more() -> None:
    alone, colluding = (plan(Sizes(20, 5, 20, 1, Privacy(epsilon=4.0), t)) for t in (0, 1))
    for one, other in zip(alone.lines[1:], colluding.lines[1:], strict=True):
        assert 5 * one.site**2 == pytest.approx(one.noise**2)
        assert 5 * other.site**2 == pytest.approx(other.noise**2)
        assert 4 * other.site**2 == pytest.approx(one.noise**2)


def test_a_scale_lost_in_the_noise_is_said() -> None:
    assert plan(Sizes(20, 1, 20, 1, Privacy(epsilon=4.0))).contributes
    assert not plan(Sizes(20, 1, 20, 1, Privacy(epsilon=4.0, unit="day"))).contributes


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sites", "5", "--colluding", "5"], "cannot tolerate 5 colluding"),
        (["--clients", "4"], "4 clients are too few"),
        (["--sites", "200"], "200 sites cannot have 100 clients"),
        (["--clients", "20", "--groups", "3"], "3 groups need 30"),
        (["--groups", "2", "--sites", "3"], "1 with several sites"),
        (["--history", "5"], "more than 7 days of history"),
        (["--epsilon", "-1"], "privacy.epsilon must be a positive number"),
        (["--delta", "1"], "privacy.delta must be above 0"),
        (["--unit", "week"], "privacy.unit week is unknown"),
    ],
)
def test_a_plan_that_cannot_work_is_refused(fuels: Fuels, words: list[str], said: str) -> None:
    code, _, error = fuels("privacy", "plan", *words)
    assert code == 1
    assert said in error


def test_a_ledger_is_read_back(fuels: Fuels, tmp_path: Path) -> None:
    path = tmp_path / "privacy.jsonl"
    budget = Budget(4.0, 1e-5, Unit.DAY, Relation.REPLACED)
    Ledger(budget, path).release(Release("run", "mean day", 0, 86400, 1.0, 3.0, (2,)), [])
    found = json.loads(fuels("privacy", "spent", str(tmp_path), "--json")[1])
    assert (found["unit"], found["relation"]) == ("day", "replaced")
    assert 0 < float(found["spent"]) < 4
    assert found["releases"][0]["to"] == "1970-01-02T00:00:00"
    assert "Spent: epsilon" in fuels("privacy", "spent", str(path))[1]
    assert "no such privacy ledger" in fuels("privacy", "spent", str(tmp_path / "x"))[2]
    path.write_text("not a ledger\n")
    code, _, error = fuels("privacy", "spent", str(path))
    assert (code, "line 1: damaged" in error) == (1, True)


def test_the_option_is_a_preset_with_a_budget() -> None:
    preset, changes = private_preset(None, "epsilon=2, unit=day,ledger=/data/site.jsonl")
    assert preset == "private"
    assert changes == {"epsilon": "2", "unit": "day", "ledger": "/data/site.jsonl"}
    for text, said in (
        ("4", "takes epsilon=4"),
        ("epsilon=", "takes epsilon=4"),
        ("unit=day", "say how much may be revealed"),
        ("epsilon=4,noise=1", "has no part noise"),
        ("epsilon=0", "epsilon must be above 0"),
    ):
        with pytest.raises(FuelsError, match=said):
            private_preset(None, text)
    with pytest.raises(FuelsError, match="omit --preset best"):
        private_preset("best", "epsilon=4")


def test_several_runs_share_the_budget_of_one_ledger(fuels: Fuels, tmp_path: Path) -> None:
    ledger = tmp_path / "site.jsonl"
    assert fuels("privacy", "new", str(ledger), "--epsilon", "4")[0] == 0
    assert "exists" in fuels("privacy", "new", str(ledger))[2]
    words = ("run", *SMALL[:2], "--rounds", "1", "--no-plots", "--clients", "12")
    privacy = ("--privacy", f"epsilon=3,ledger={ledger}")
    assert fuels(*words, *privacy, "--out", "one")[0] == 0
    code, _, error = fuels(*words, *privacy, "--seed", "1", "--out", "two")
    assert (code, "would spend epsilon 3, which the budget of 4" in error) == (1, True)
    assert not (tmp_path / "two" / "metrics.jsonl").exists()
    assert "has unit hour" in fuels(*words, "--privacy", f"epsilon=1,unit=day,ledger={ledger}")[2]
    assert "no such privacy ledger" in fuels(*words, "--privacy", "epsilon=3,ledger=x.jsonl")[2]
