"""Defences in training: FUELS with trials of L_inter, and who is left out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fuels.federation.site import Site
from fuels.runs.build import Job
from helpers.small_federation import evaluated_models, job_of, small_panel, trained

pytestmark = pytest.mark.filterwarnings("ignore:nothing to share")

TRIALS = {"trials": 1}
BETA = {"beta": 20.0}  # three clients: with the median everyone may be alike


def fuels(options: dict[str, Any] | None = None, **defence: Any) -> Job:
    return trained("fuels", small_panel(), 3, options={**BETA, **(options or {})}, defence=defence)


def set_errors(monkeypatch: pytest.MonkeyPatch, with_inter: float, without: float) -> None:
    """Let every trial find these errors, in the order in which it asks for them."""
    answers = iter([with_inter, without] * 99)

    def own_error(site: Site, index: np.ndarray, models: Any) -> np.ndarray:
        return np.full(len(index), next(answers))

    monkeypatch.setattr(Site, "own_error", own_error)


def same(one: Job, other: Job) -> bool:
    return all(
        torch.equal(evaluated_models(one)[name], part)
        for name, part in evaluated_models(other).items()
    )


def test_a_trial_keeps_the_better_model(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, without = fuels(), fuels({"inter": False})
    assert not same(plain, without), "L_inter must matter here"
    set_errors(monkeypatch, with_inter=0.0, without=1.0)
    kept = fuels(**TRIALS)
    assert same(kept, plain) and (kept.site.parts["trust"] == 1).any()
    set_errors(monkeypatch, with_inter=1.0, without=0.0)
    dropped = fuels(**TRIALS)
    assert same(dropped, without) and not (dropped.site.parts["trust"] == 1).any()


def test_a_client_that_dropped_l_inter_does_without_until_its_next_trial(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_errors(monkeypatch, with_inter=1.0, without=0.0)
    job = fuels(trials=10**9)  # only the first trial is due
    assert same(job, fuels({"inter": False}))


def test_without_an_error_of_its_own_a_client_keeps_l_inter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    set_errors(monkeypatch, with_inter=float("nan"), without=float("nan"))
    assert same(fuels(**TRIALS), fuels())


def test_a_run_with_defences_resumes_to_the_same_models() -> None:
    defence = {"trials": 2, "admission": 5.0, "directions": True, "farthest": 95.0}
    whole = fuels(**defence)
    first = job_of("fuels", small_panel(), 3, options=BETA, defence=defence)
    first.loop.step()
    first.loop.step()
    later = job_of("fuels", small_panel(), 3, options=BETA, defence=defence)
    arrays, facts = first.loop.state()
    later.loop.load({name: value.copy() for name, value in arrays.items()}, facts)
    later.loop.run()
    assert same(whole, later)


def test_only_directions_reach_the_others() -> None:
    """A client that sends its prototype ten times as long changes nobody's PR_n and NR_n."""
    job = job_of("fuels", small_panel(), 2, options=BETA, defence={"directions": True})
    job.loop.step()
    clients = job.loop.clients
    table = job.loop.server
    before = job.method.download(table, clients)
    table.prototypes[0] *= 0.1
    after = job.method.download(table, clients)
    assert before.clients == after.clients and len(before.clients)
    for name, array in before.personal.items():
        np.testing.assert_allclose(array, after.personal[name], atol=1e-6)


@pytest.mark.parametrize("method", ["fuels", "fedavg"])
def test_a_false_client_is_left_out_and_counted(method: str) -> None:
    panel = small_panel(8, holes=False)
    job = job_of(method, panel, 2, defence={"admission": 5.0})
    original = job.loop.transport.train

    def train(number: int, clients: Any, download: Any) -> Any:
        [reply], failures = original(number, clients, download)
        for name, array in reply.upload.arrays.items():
            start = download.shared[name] if method == "fedavg" else 0.0
            array[0] = start - (array[0] - start)
        return [reply], failures

    job.loop.transport.train = train  # type: ignore[method-assign]
    done = job.loop.step()
    assert done.left_out >= 1 and done.line()["left_out"] == done.left_out
    assert job.loop.left_out["c0"] == 1
    if method == "fuels":
        having = job.method.download(job.loop.server, job.loop.clients)
        negative = having.personal["negative"]
        assert np.isfinite(negative).all()
    _, facts = job.loop.state()
    assert facts["left_out"] == job.loop.left_out


def test_an_unusual_prototype_is_left_out_and_only_a_false_one_counts_against_its_site() -> None:
    job = job_of("fuels", small_panel(8, holes=False), 2, defence={"admission": 5.0})
    job.loop.step()
    method, table = job.method, job.loop.server
    sent = np.tile(table.prototypes[:1], (8, 1, 1))
    noise = np.random.default_rng(0).standard_normal(sent.shape).astype(np.float32)
    typical = np.linalg.norm(sent, axis=-1, keepdims=True) / np.sqrt(sent.shape[-1])
    sent += 0.05 * typical * noise
    sent[3] += 0.8 * typical[0] * noise[3]
    sent[5] *= -1
    table.update(table.clients, sent)
    assert method.left_out(table) == ("c3", "c5") and method.useless(table) == ("c5",)


def test_without_defences_a_round_says_nothing_of_them() -> None:
    job = fuels()
    assert "trust" not in job.site.parts and job.loop.left_out == {}
