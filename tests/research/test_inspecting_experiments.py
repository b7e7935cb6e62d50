"""The experiments that look inside, on small federations: hand counts, identities, refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.spatial.distance import jensenshannon

from fuels.data.sample import Sample, paper_branches
from fuels.data.windows import prepare
from fuels.errors import FuelsError
from fuels.paper.similarity import SimilarityTable
from fuels.research.costs import COSTS, costs
from fuels.research.experiments import complexity, counting, data, filtering, similarity, theory
from fuels.storage.journal import Journal
from helpers.inspection import ENGINE, PERIOD, context_of, job_of, small_panel
from helpers.panels import make_panel

# -- data --------------------------------------------------------------------------------------


def dataset_of(values: np.ndarray) -> Any:
    panel = replace(
        make_panel(clients=values.shape[1], days=len(values) // PERIOD, period=PERIOD),
        values=values,
    )
    return prepare(panel, Sample(paper_branches(PERIOD, 2, 1), PERIOD), split="6/0/2")


def test_day_shapes_are_mean_days_from_zero_that_sum_to_one() -> None:
    day = np.array([3.0, 1.0, 5.0, 1.0, 1.0, 1.0])
    values = np.tile(np.stack([day, 10 * day + 7], axis=1), (8, 1))
    values[0, 0] = np.nan  # the other days still say what phase 0 is
    shapes = data.day_shapes(dataset_of(values))
    expected = np.array([2, 0, 4, 0, 0, 0]) / 6
    np.testing.assert_allclose(shapes, [expected, expected])  # level and scale do not matter


def test_divergences_are_scipys_squared() -> None:
    rows = np.random.default_rng(3).dirichlet(np.ones(5), size=4)
    rows[0, :2] = 0
    rows[0] /= rows[0].sum()
    found = data.divergences(rows)
    expected = [[jensenshannon(p, q) ** 2 for q in rows] for p in rows]
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_data_draws_a_map_only_where_places_are_known(tmp_path: Path) -> None:
    known, unknown = tmp_path / "known", tmp_path / "unknown"
    for folder in (known, unknown):
        folder.mkdir()
    with_map = data.run(context_of(data.EXPERIMENT, known, small_panel()))
    without = data.run(context_of(data.EXPERIMENT, unknown, small_panel(places=False)))
    assert set(with_map.figures) == {"data-heterogeneity", "data-map"}
    assert set(without.figures) == {"data-heterogeneity"}
    assert "no coordinates" in without.text[0]
    rows = with_map.tables["data-pair"].rows
    assert len(rows) == 4  # two clients, two parts of the period
    assert all(row[3] == 12 for row in rows)  # one phase of six, twelve periods


def test_telling_pair_is_the_least_alike_of_the_busier_half() -> None:
    flat = np.array([1.0, 1.1, 1.0, 1.1, 1.0, 1.1])
    early, late = np.array([9.0, 1, 1, 1, 1, 1]), np.array([1.0, 1, 1, 1, 1, 9])
    middle = np.array([5.0, 4, 4, 4, 4, 5])
    days = [0.1 * early, 10 * early, 12 * middle, 10 * late, 0.1 * flat, 0.1 * late]
    values = np.tile(np.stack(days, axis=1), (8, 1))
    values += np.random.default_rng(0).normal(0, 1e-3, values.shape)
    assert data.telling_pair(dataset_of(values)) == (1, 3)


# -- similarity --------------------------------------------------------------------------------


def symmetric(upper: list[float], count: int) -> np.ndarray:
    values = np.zeros((count, count))
    values[np.triu_indices(count, k=1)] = upper
    return values + values.T


def test_agreement_with_itself_and_with_the_opposite() -> None:
    one = symmetric([1, 2, 3, 4, 5, 6], 4)
    same = similarity.agreement(one, one)
    assert (same.rate, same.pairs) == (1.0, 6)
    assert same.spearman == pytest.approx(1.0)
    against = similarity.agreement(one, symmetric([6, 5, 4, 3, 2, 1], 4))
    assert against.rate == 0.0
    assert against.spearman == pytest.approx(-1.0)


def test_agreement_by_hand() -> None:
    # Alike (the lower half): pairs 1 2 3 and pairs 1 2 4: the same said of 1, 2, 5 and 6.
    one, other = symmetric([1, 2, 3, 4, 5, 6], 4), symmetric([1, 2, 4, 3, 5, 6], 4)
    found = similarity.agreement(one, other)
    assert found.rate == pytest.approx(4 / 6)
    assert found.chance == pytest.approx(0.5, abs=0.1)
    assert 0 < found.luck <= 1


def test_agreement_of_unrelated_matrices_is_what_chance_says() -> None:
    rng = np.random.default_rng(5)
    one, other = (symmetric(rng.random(45 * 44 // 2).tolist(), 45) for _ in range(2))
    found = similarity.agreement(one, other)
    assert abs(found.rate - found.chance) < 0.05
    assert found.luck > 0.001


def test_agreement_refuses_two_clients() -> None:
    with pytest.raises(FuelsError, match="too few"):
        similarity.agreement(np.zeros((2, 2)), np.zeros((2, 2)))


def test_order_puts_alike_clients_together() -> None:
    kind = np.array([0, 1, 0, 1, 0, 1])
    values = np.where(kind[:, None] == kind[None, :], 0.01, 1.0)
    np.fill_diagonal(values, 0.0)
    ordered = kind[similarity.order_by(values)]
    assert abs(np.diff(ordered)).sum() == 1


def test_pull_by_hand() -> None:
    """Two clients at a right angle, one row each: nearer by 1, a sigmoid of -1 / tau is left."""
    table = SimilarityTable(["a", "b"], (1, 2))
    table.update(["a", "b"], np.array([[[1.0, 0.0]], [[0.0, 1.0]]], dtype=np.float32))
    nearer, left = similarity.pull(table, beta=0.0, tau=0.5)
    # The only pair is at every percentile, so both are alike, and nobody has an NR_n.
    assert np.isnan(nearer) and np.isnan(left)
    table = SimilarityTable(["a", "b", "c"], (1, 2))
    rows = np.array([[[1.0, 0.0]], [[1.0, 0.0]], [[0.0, 1.0]]], dtype=np.float32)
    table.update(["a", "b", "c"], rows)
    nearer, left = similarity.pull(table, beta=0.0, tau=0.5)
    assert nearer == pytest.approx(1.0)
    assert left == pytest.approx(1 / (1 + np.exp(2.0)))


def test_similarity_runs(tmp_path: Path) -> None:
    result = similarity.run(context_of(similarity.EXPERIMENT, tmp_path, small_panel()))
    [row] = result.tables["similarity"].rows
    assert row[2] == 15
    assert 0 <= float(row[3]) <= 100  # type: ignore[arg-type]
    assert set(result.figures) == {"similarity"}


# -- filtering ---------------------------------------------------------------------------------


def test_shares_by_hand() -> None:
    W = np.array([[[1, -1, 2], [0, -3, 4], [5, 6, -7]], -np.eye(3)], dtype=np.float32)
    on, off = filtering.shares(W)
    np.testing.assert_allclose(on, [1 / 3, 0])
    np.testing.assert_allclose(off, [4 / 6, 0])


def test_filtering_follows_every_round(tmp_path: Path) -> None:
    result = filtering.run(context_of(filtering.EXPERIMENT, tmp_path, small_panel(), rounds=4))
    rows = result.tables["filtering"].rows
    assert [row[0] for row in rows] == [0, 1, 2, 4]
    assert set(result.figures) == {"filtering-weights", "filtering-shares"}
    # L_intra only ever pushes positive entries down.
    assert float(rows[-1][4]) <= float(rows[0][4])  # type: ignore[arg-type]


def test_entries_that_start_negative_stay_as_they_are() -> None:
    job = job_of("fuels", rounds=3)
    watcher = filtering.FilterWatcher(job)
    job.loop.run([watcher])
    asleep = watcher.start <= 0
    after = watcher.weights()
    np.testing.assert_array_equal(after[asleep], watcher.start[asleep])
    assert (after[~asleep] < watcher.start[~asleep]).mean() > 0.9
    assert "100.0 % keep their initial value" in filtering.sentences(watcher.start, after, 3)[1]


def test_filtering_refuses_a_run_without_filter_and_an_unknown_client(tmp_path: Path) -> None:
    panel = small_panel()
    with pytest.raises(FuelsError, match="remove from training"):
        filtering.run(
            context_of(filtering.EXPERIMENT, tmp_path, panel, method_options={"filter": "false"})
        )
    with pytest.raises(FuelsError, match="client nobody does not take part"):
        filtering.run(
            context_of(filtering.EXPERIMENT, tmp_path, panel, options={"client": "nobody"})
        )


@pytest.mark.parametrize("experiment", [filtering, theory])
def test_what_was_interrupted_goes_on_and_ends_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, experiment: Any
) -> None:
    """Stopped after a round, then asked for again: the same tables as without a stop."""

    def found(folder: str) -> list[Any]:
        (tmp_path / folder).mkdir(exist_ok=True)
        context = context_of(experiment.EXPERIMENT, tmp_path / folder, small_panel(), rounds=5)
        tables = experiment.run(context).tables
        return [(name, table.rows) for name, table in tables.items()]

    whole, real = found("whole"), Journal.save

    def stopping(self: Journal, number: int, *rest: Any, **how: Any) -> None:
        real(self, number, *rest, **how)
        if number == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(Journal, "save", stopping)
    with pytest.raises(KeyboardInterrupt):
        found("stopped")
    rounds: list[int] = []

    def noting(self: Journal, number: int, *rest: Any, **how: Any) -> None:
        rounds.append(number)
        real(self, number, *rest, **how)

    monkeypatch.setattr(Journal, "save", noting)
    assert found("stopped") == whole and rounds == [4, 5]
    assert found("stopped") == whole and rounds == [4, 5]  # a third time nothing is trained


# -- complexity --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", list(COSTS))
def test_formulas_equal_what_is_counted(name: str) -> None:
    # A low percentile calls few alike: every client then has somebody unlike it, as counted.
    few = {"fuels": {"beta": 5}, "fedda": {"week": 2, "clusters": 2, "warm_epochs": 1}}
    options = few.get(name, {})
    job = job_of(name, rounds=3, training={"selection": 0.6, "rounds": 3}, options=options)
    [cost] = costs(counting.sizes_of(job), [name])
    real = counting.count(job, ENGINE)
    assert (cost.up, cost.down) == (real.up, real.down)
    assert (cost.total_up, cost.total_down) == (real.total_up, real.total_down)
    assert cost.train == real.train
    assert cost.infer == real.infer
    assert cost.pairs == real.pairs


def test_complexity_tables(tmp_path: Path) -> None:
    context = context_of(
        complexity.EXPERIMENT, tmp_path, small_panel(), options={"methods": "fuels, fedavg"}
    )
    result = complexity.run(context)
    assert [row[0] for row in result.tables["complexity-work"].rows] == ["FUELS", "FedAvg"]
    ours, theirs = result.tables["complexity-server"].rows
    assert ours[1] == ours[2] == ours[3] and theirs[1:4] == [1, 0, 0]  # all clients take part
    assert any("fewer numbers up than FedAvg" in line for line in result.text)


def test_complexity_refuses_options_its_formulas_do_not_know() -> None:
    with pytest.raises(FuelsError, match=r"options\.intra"):
        counting.sizes_of(job_of("fuels", options={"intra": False}))
    with pytest.raises(FuelsError, match=r"model\.encoder"):
        counting.sizes_of(job_of("fuels", model={"encoder": "linear"}))
