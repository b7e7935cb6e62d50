"""Lags, clock, change and horizons as data: what a sample sees and says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from fuels.config import Engine, Settings, Windows, merge
from fuels.data.calendar import make_calendar
from fuels.data.sample import Sample, paper_branches, parse_lags, sample_of
from fuels.data.windows import prepare
from fuels.errors import FuelsError
from fuels.methods.registry import METHODS
from fuels.model.network import build_network
from fuels.runs.build import build
from fuels.training.groups import Group, GroupData
from helpers.panels import make_panel

RICH = {
    "lags": "1-2/1p,1p+1",
    "calendar": ["time", "free", "weekday"],
    "target": "change",
    "horizon": 3,
}


def test_lags_are_written_in_steps_and_periods() -> None:
    assert parse_lags("1-4/1p,1p+1,2p,7p", 24) == ((4, 3, 2, 1), (168, 48, 25, 24))
    assert parse_lags("p-1, 3", 24) == ((23, 3),)
    assert sample_of(Windows()).branches == paper_branches(24, 3, 3)
    for text in ("", "0", "1p-24", "1/x", "2w", "1,,2", "4-1"):
        with pytest.raises(FuelsError, match=r"windows\.lags"):
            parse_lags(text, 24)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"calendar": ("tim",)}, "did you mean time"),
        ({"target": "delta"}, "value or change"),
        ({"target": "change", "lags": "2,3"}, "add lag 1"),
    ],
)
def test_invalid_samples_are_rejected(change: dict[str, object], match: str) -> None:
    with pytest.raises(FuelsError, match=match):
        sample_of(replace(Windows(), **change))  # type: ignore[arg-type]


def test_the_clock_by_hand() -> None:
    """Four steps a day from Friday 5 January 2024 on, two steps ahead; Monday is a holiday."""
    sample = Sample(((1,),), 4, ("time", "free", "weekday"), horizon=2)
    panel = make_panel(clients=1, days=4, period=24)
    panel = replace(panel, start=np.datetime64("2024-01-05", "s"), step=np.timedelta64(6, "h"))
    times = panel.start + np.arange(14) * np.timedelta64(6, "h")
    clock = sample.clock(make_calendar(["2024-01-08"]), times, 0)
    assert sample.clock_width == 4 + 4 + 7 and sample.encoder_clock_width == 4 + 1 + 7
    assert clock.shape == (13, 2, 27)
    clock, signs = clock[:, :, :15], clock[:, :, 15:]
    np.testing.assert_allclose(signs[3, 0, :5], [-1, 0, 0, -1, 0], atol=1e-6)  # a quarter to go
    np.testing.assert_allclose(signs[4, 0, :5], [0, 1, 0, 1, 1], atol=1e-6)
    assert signs[:, 0, 5:].argmax(axis=1)[:5].tolist() == [4, 4, 4, 4, 5]
    assert np.flatnonzero(clock[3, 0]).tolist() == [3, 8 + 4]  # Friday, last step
    assert np.flatnonzero(clock[3, 1]).tolist() == [0, 4 + 0, 8 + 5]  # Saturday, first step
    assert np.flatnonzero(clock[12, 0]).tolist() == [0, 4 + 0, 8 + 0]  # the holiday


def test_a_shift_of_the_level_shifts_the_forecast_by_as_much() -> None:
    sample = sample_of(merge(Settings(), {"windows": RICH}, "test").windows)
    network = build_network("gru", 6, sample)
    parts = {n: torch.from_numpy(a)[None] for n, a in network.initial(0).items()}
    rng = np.random.default_rng(0)
    parts["decoder"] = torch.from_numpy(rng.standard_normal((1, network.sizes["decoder"]), "f4"))
    x = torch.from_numpy(rng.standard_normal((1, 5, len(sample.lags)), dtype=np.float32))
    clock = torch.from_numpy(
        rng.random((5, 3, sample.clock_width + sample.encoder_clock_width), dtype=np.float32)
    )
    said = network.predict_all(parts, x, clock)
    assert said.shape == (1, 5, 3)
    torch.testing.assert_close(network.predict_all(parts, x + 3, clock), said + 3)
    torch.testing.assert_close(said[:, :, 0], network.predict(parts, x, clock))
    assert (said[:, :, 0] - said[:, :, 1]).abs().min() > 0  # every head speaks for itself
    plain = build_network("gru", 6, replace(sample, change=False))
    assert not torch.allclose(plain.predict_all(parts, x + 3, clock), said + 3)


def test_a_head_adds_the_weight_of_its_slot() -> None:
    sample = Sample(((1,),), 4, ("time",))
    network = build_network("gru", 2, sample)
    decoder = torch.zeros(1, network.sizes["decoder"])
    decoder[0] = torch.tensor([0, 0, 10, 20, 30, 40, 1.0])  # r, four slots, bias
    parts = {"encoder": torch.zeros(1, network.sizes["encoder"]), "decoder": decoder}
    said = network.predict(
        parts, torch.zeros(1, 4, 1), torch.cat([torch.eye(4), torch.zeros(4, 4)], 1).unsqueeze(1)
    )
    assert said.tolist() == [[11, 21, 31, 41]]


def test_a_summed_head_reads_the_sum_of_the_states_and_has_the_papers_size() -> None:
    papers = build_network("gru", 128, Sample(paper_branches(24, 3, 3), 24), "sum")
    assert sum(papers.sizes.values()) == 100737 and papers.width == 256
    sample = sample_of(merge(Settings(), {"windows": RICH}, "test").windows)
    network = build_network("gru", 6, sample, "sum")
    wide = build_network("gru", 6, sample)
    parts = {n: torch.from_numpy(a)[None] for n, a in network.initial(0).items()}
    rng = np.random.default_rng(0)
    decoder = rng.standard_normal((1, sample.horizon, network.head), dtype=np.float32)
    states = [decoder[:, :, :6]] * len(sample.branches)
    repeated = np.concatenate([*states, decoder[:, :, 6:]], axis=2).reshape(1, -1)
    x = torch.from_numpy(rng.standard_normal((1, 5, len(sample.lags)), dtype=np.float32))
    clock = torch.from_numpy(
        rng.random((5, 3, sample.clock_width + sample.encoder_clock_width), dtype=np.float32)
    )
    parts["decoder"] = torch.from_numpy(decoder.reshape(1, -1))
    said = network.predict_all(parts, x, clock)
    parts["decoder"] = torch.from_numpy(repeated)
    torch.testing.assert_close(wide.predict_all(parts, x, clock), said)


def test_the_paper_starts_from_the_same_numbers_as_before() -> None:
    """Further heads add numbers behind those of the paper's model and change none of them."""
    paper = Sample(paper_branches(24, 3, 3), 24)
    plain = build_network("gru", 3, paper).initial(5)
    start = build_network("gru", 3, replace(paper, horizon=2)).initial(5)
    np.testing.assert_array_equal(start["encoder"], plain["encoder"])
    np.testing.assert_array_equal(start["decoder"][:7], plain["decoder"])
    told = build_network("gru", 3, replace(paper, calendar=("time",))).initial(5)
    assert told["decoder"][6:30].tolist() == [0.0] * 24  # the clock has no say before it learned


def test_doubt_inverts_some_days_for_all_clients_alike() -> None:
    panel = make_panel(clients=2, days=16)
    sample = Sample(((1,), (24,)), 24, ("time", "free"), doubt=0.5)
    data = prepare(panel, sample, split="12/2/2")

    def clocks(clients: list[int], round_number: int) -> list[bool]:
        index = np.array(clients)
        group = Group(
            [data.ids[i] for i in clients], GroupData(data, index, torch.device("cpu")),
            None, {}, {}, None, seed=0, round_number=round_number, shift=1.0,  # type: ignore[arg-type]
        )  # fmt: skip
        free = [bool(batch.clock[0, 0, -1]) for batch in group.batches(1)]
        days = [str(day)[:10] for day in data.times("train")[::24]][1:]
        pairs = zip(free, days, strict=True)
        return [told != (np.datetime64(d).item().weekday() >= 5) for told, d in pairs]

    wrong = clocks([0, 1], 1)
    assert 0 < sum(wrong) < len(wrong) and clocks([1], 1) == wrong
    assert clocks([0, 1], 2) != wrong
    assert not data.clock(0, 24)[:, 0, -1].any()  # 1 January 2024 was a Monday; forecasts know it


def test_targets_of_all_heads_stay_inside_training() -> None:
    panel = make_panel(clients=2, days=12, period=24)
    panel.values[5 * 24 + 7, 0] = np.nan
    sample = Sample(((1,), (24,)), 24, horizon=3)
    data = prepare(panel, sample, split="8/2/2")
    group = GroupData(data, np.arange(2), torch.device("cpu"))
    period = 7  # the last of training
    y, weight = group.y[:, group.rows(period)], group.weight[period]
    at = period * 24
    for h in range(3):
        np.testing.assert_array_equal(y[:, 4, h], data.series[:, at + 4 + h])
    assert (weight[:, 22] > 0).tolist() == [[True, True, False]] * 2  # row 22 sees one step more
    assert (weight[:, 23] > 0).tolist() == [[True, False, False]] * 2
    torch.testing.assert_close(weight.sum((1, 2)), torch.ones(2))
    gap = group.weight[5][0]  # a filled value is no target, one or two steps ahead either
    assert gap[7, 0] == gap[6, 1] == gap[5, 2] == 0 and gap[6, 2] > 0


@pytest.mark.parametrize("method", sorted(METHODS))
def test_every_method_learns_with_richer_inputs(method: str) -> None:
    """All heads of all methods get better in a few rounds, and FUELS sends no number more."""
    changes = {
        "method": method,
        "windows": {**RICH, "split": "10/2/2"},
        "model": {"hidden": 4},
        "training": {"rounds": 4, "selection": 1.0},
        "options": {"week": 2} if method == "fedda" else {},
    }
    settings = merge(Settings(), changes, "test")
    panel = make_panel(clients=4, days=14)
    with build(settings, Engine(threads=1), panel) as job:
        before = torch.from_numpy(job.method.facts.network.initial(0)["decoder"])
        job.loop.run()
        after = job.site.models(job.loop.final_download())
        first, last = job.dataset.split.part("val")
        assert job.site.forecast(after, "val").shape == (4, last - first)
        heads = (after["decoder"] - before).view(4, 3, -1)
        assert (heads.abs().amax(dim=2) > 0).all()  # no head stands still
        if method == "fuels":
            assert job.method.uploads(2)["prototype"].shape == (24, 8)
