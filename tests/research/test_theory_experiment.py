"""What `fuels experiment theory` estimates: gradients, couplings, steepest changes; refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fuels.errors import FuelsError
from fuels.paper.losses import inter_loss, unit
from fuels.research.experiments import constants, theory
from fuels.runs.build import Job
from fuels.training.groups import GroupData
from helpers.inspection import PERIOD, context_of, job_of, small_panel


def probe_of(job: Job) -> constants.Probe:
    probe = constants.Probe(job)
    job.loop.run([probe])
    return probe


def test_look_gives_the_gradient_and_moves_nothing() -> None:
    job = job_of("fuels")
    probe = probe_of(job)
    rows = torch.from_numpy(probe.index)
    parts = {name: part[rows].clone() for name, part in job.site.parts.items()}
    before = {name: part.clone() for name, part in parts.items()}
    ids = [job.dataset.ids[i] for i in probe.index]
    download = job.method.download(job.loop.server, ids)

    def seen(at: dict[str, torch.Tensor]) -> constants.Look:
        return constants.look(job, probe.data, probe.index.tolist(), at, download)

    here = seen(parts)
    assert all(torch.equal(parts[name], before[name]) for name in parts)
    rng = np.random.default_rng(1)
    step = 1e-3 * torch.from_numpy(rng.standard_normal(here.gradient.shape).astype(np.float32))
    ahead, behind = seen(constants.shifted(parts, step)), seen(constants.shifted(parts, -step))
    expected = (here.gradient.double() * step).sum(1).numpy()
    assert abs(expected).min() > 1e-4
    np.testing.assert_allclose((ahead.loss - behind.loss) / 2, expected, rtol=0.03, atol=2e-5)


def test_coupling_equals_finite_differences() -> None:
    job = job_of("fuels", clients=4)
    job.loop.run()
    index = np.arange(4)
    data_ = GroupData(job.dataset, index, job.site.device)
    parts = dict(job.site.parts)
    found = constants.coupling(job, data_, index, parts)

    table, options = job.loop.server, job.method.options
    network, count = job.method.facts.network, len(data_.periods)
    r = network.encode(
        parts, data_.windows[:, : count * PERIOD], data_.clocks[0][: count * PERIOD]
    ).double()
    alike = torch.from_numpy(table.alike(options.beta))
    prototypes = torch.from_numpy(table.prototypes).double()
    encoder = parts["encoder"].double()

    def h(n: int, R: torch.Tensor) -> float:
        rows = unit(r[n]).view(count, PERIOD, -1)
        sides = [unit(R[side].mean(0)).expand(count, -1, -1) for side in (alike[n], ~alike[n])]
        weight = torch.full((count, PERIOD), 1 / PERIOD, dtype=torch.float64)
        return float(inter_loss(rows, *sides, options.tau, weight).mean())

    largest = 0.0
    for i in (0, count // 2, count - 1):
        rows = slice(i * PERIOD, (i + 1) * PERIOD)
        x, clock = data_.windows[:, rows].double(), data_.clocks[0][rows].double()
        slopes = np.zeros((4, 4, encoder.shape[1]))  # [n, m, parameter]
        for k in range(encoder.shape[1]):
            step = torch.zeros_like(encoder)
            step[:, k] = 1e-4
            up, down = (network.encode({"encoder": encoder + s}, x, clock) for s in (step, -step))
            for m in range(4):
                ahead, behind = prototypes.clone(), prototypes.clone()
                half = (up[m] - down[m]) / 2 / count
                ahead[m] += half
                behind[m] -= half
                for n in np.flatnonzero((~alike).any(dim=1).numpy()):
                    slopes[n, m, k] = (h(n, ahead) - h(n, behind)) / 2e-4
        largest = max(largest, float(np.sqrt((slopes**2).sum(axis=2)).max()))
    assert found == pytest.approx(largest, rel=1e-2)


def test_steepest_change_of_a_gradient_is_found() -> None:
    """Along random directions the gradient changes no faster than what the probe has seen."""
    job = job_of("fuels", rounds=2)
    probe = probe_of(job)
    found, largest = constants.estimate(probe)
    assert found.smoothness == probe.steepest / 2 > 0
    assert largest >= max(seen.loss.max() for seen in probe.looks.values())
    assert found.gap >= 0
    assert found.iterations == 9
    rows = torch.from_numpy(probe.index)
    here = {name: part[rows].clone() for name, part in job.site.parts.items()}
    download = job.method.download(job.loop.server, [job.dataset.ids[i] for i in probe.index])
    seen = constants.look(job, probe.data, probe.index.tolist(), here, download)
    rng = np.random.default_rng(2)
    step = 1e-3 * torch.from_numpy(rng.standard_normal(seen.gradient.shape).astype(np.float32))
    other = constants.look(
        job, probe.data, probe.index.tolist(), constants.shifted(here, step), download
    )
    ratio = constants.lengths(other.gradient - seen.gradient) / constants.lengths(step)
    assert float(ratio.max()) <= 1.05 * probe.steepest


def test_theory_tables_and_statement(tmp_path: Path) -> None:
    context = context_of(theory.EXPERIMENT, tmp_path, small_panel(), options={"vc": "1,10,100000"})
    result = theory.run(context)
    assert set(result.tables) == {
        "theory-constants",
        "theory-convergence",
        "theory-generalisation",
    }
    printed = result.tables["theory-generalisation"].rows
    assert printed[0][3] > printed[0][7]  # type: ignore[operator]
    assert printed[2][3] is None  # more dimensions than samples
    assert any("adam" in line for line in result.text)
    assert set(result.figures) == {"theory"}


@pytest.mark.parametrize(
    ("options", "rounds", "words"),
    [
        ({"vc": "many"}, 3, "vc takes dimensions"),
        ({"vc": "0"}, 3, "at least 1"),
        ({"kappa": "1"}, 3, "between 0 and 1"),
        ({"kappa": "nan"}, 3, "between 0 and 1"),
        ({}, 1, "at least 2 rounds"),
    ],
)
def test_theory_refuses(tmp_path: Path, options: dict[str, str], rounds: int, words: str) -> None:
    context = context_of(theory.EXPERIMENT, tmp_path, small_panel(), rounds, options)
    with pytest.raises(FuelsError, match=words):
        theory.run(context)
