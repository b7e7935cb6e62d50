"""A step by compiled kernels, client by client, against the same step by autograd."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fuels.errors import FuelsError
from fuels.kernels.dispatch import use_kernels
from fuels.methods import base
from fuels.methods.base import MODEL
from fuels.model.network import Parts
from fuels.model.optimiser import Update, adam, proximal, sgd
from fuels.paper.losses import Inter, Intra
from fuels.training.groups import Batch, Group, Optimiser
from fuels.training.step import Contrast, Step, Terms, descend, differentiate, nothing
from helpers.small_federation import PERIOD, job_of, small_panel

WIDTH = 16  # two branches of hidden 8
RICH = {"calendar": ["time", "free"], "target": "change", "horizon": 3}


def setting(
    clients: list[int],
    optimiser: Optimiser | None = None,
    augment: bool = True,
    windows: dict[str, Any] | None = None,
) -> tuple[Group, Batch]:
    """Some of three clients before their first round, and a batch."""
    job = job_of("fuels", small_panel(), windows=windows or {})
    group = job.site.group(np.array(clients), 1)
    if optimiser is not None:
        group.optimiser = optimiser
        group.slots = {name: optimiser.fresh(part) for name, part in group.parts.items()}
    return group, list(group.batches(1, augment))[2]


def contrast_for(clients: list[int]) -> Contrast:
    given = np.random.default_rng(3).uniform(-1, 1, (2, 3, PERIOD, WIDTH)).astype(np.float32)
    positive, negative = torch.from_numpy(given[:, clients])

    def contrast(parts: Parts, batch: Batch) -> Terms:
        W = parts["filter"].view(-1, PERIOD, PERIOD)
        weight = batch.row_weight
        return Intra(W, 0.1, weight), Inter(positive, negative, 0.1, weight, 5.0)

    return contrast


def step(
    kernels: str,
    names: tuple[str, ...],
    *,
    contrasted: bool = True,
    clients: tuple[int, ...] = (0, 1, 2),
    optimiser: Optimiser | None = None,
    weight: float = 0.0,
    windows: dict[str, Any] | None = None,
) -> dict[str, torch.Tensor]:
    """All that a step leaves: parts, optimiser memory, encoded rows, terms."""
    chosen = list(clients)
    group, batch = setting(chosen, optimiser, contrasted, windows)
    use_kernels(kernels)  # after the federation was built, which chooses for itself
    try:
        contrast = contrast_for(chosen) if contrasted else nothing
        updates = group.updates(names, batch.active)
        anchors = {name: torch.full((1, group.parts[name].shape[1]), 0.5) for name in names}
        for name, several in updates.items():
            several.insert(0, Update(proximal, group.parts[name], (anchors[name], weight)))
        [(encoded, terms)] = descend(group.network, group.parts, [Step(batch, updates, contrast)])
    finally:
        use_kernels("auto")
    left = {"encoded": encoded}
    left |= {f"term {name}": value for name, value in terms.items()}
    left |= {f"part {name}": value for name, value in group.parts.items()}
    for name, slot in group.slots.items():
        left |= {f"{key} of {name}": value for key, value in slot.items()}
    return left


def test_a_step_on_the_prediction_loss_equals_autograd() -> None:
    found, wanted = (step(kernels, MODEL, contrasted=False) for kernels in ("fused", "plain"))
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        assert torch.allclose(found[key].double(), value.double(), rtol=1e-4, atol=2e-5), key


@pytest.mark.parametrize("weight", [0.0, 0.3])
@pytest.mark.parametrize(
    "names", [("encoder", "decoder", "filter"), MODEL, ("decoder",), ("encoder",)]
)
def test_a_step_equals_autograd(names: tuple[str, ...], weight: float) -> None:
    found, wanted = (step(kernels, names, weight=weight) for kernels in ("fused", "plain"))
    assert found.keys() == wanted.keys()
    for key, value in wanted.items():
        assert torch.allclose(found[key].double(), value.double(), rtol=1e-4, atol=2e-5), key


@pytest.mark.parametrize("contrasted", [True, False])
def test_a_step_with_calendar_and_several_heads_equals_autograd(contrasted: bool) -> None:
    names = ("encoder", "decoder", "filter") if contrasted else MODEL
    found, wanted = (
        step(kernels, names, contrasted=contrasted, windows=RICH) for kernels in ("fused", "plain")
    )
    for key, value in wanted.items():
        assert torch.allclose(found[key].double(), value.double(), rtol=1e-4, atol=2e-5), key
    before, _ = setting([0, 1, 2], windows=RICH)
    moved = (found["part decoder"] != before.parts["decoder"]).view(3, 3, -1)
    assert moved[:2].any(dim=2).all()  # every head; the third client has a gap to come
    assert any(not torch.equal(found[key], wanted[key]) for key in wanted)  # two ways, not one


def test_a_step_of_sgd_equals_autograd() -> None:
    sizes = Optimiser("sgd", 0.5, momentum=0.9)
    names = ("encoder", "decoder", "filter")
    found, wanted = (
        step(kernels, names, optimiser=sizes, weight=0.3) for kernels in ("fused", "plain")
    )
    for key, value in wanted.items():
        assert torch.allclose(found[key].double(), value.double(), rtol=1e-4, atol=1e-6), key
    before, _ = setting([0, 1, 2])
    moved = [not torch.equal(found[f"part {n}"], before.parts[n]) for n in names]
    assert all(moved)


@pytest.mark.parametrize("kernels", ["fused", "plain"])
@pytest.mark.parametrize("optimiser", [Optimiser("adam", 0.01), Optimiser("sgd", 0.1, 0.9)])
@pytest.mark.parametrize("places", [(2, 2, 2), (1, 2, 3), (3, 1, 1)])
def test_several_steps_in_one_call_are_bit_identical(
    kernels: str, optimiser: Optimiser, places: tuple[int, ...]
) -> None:
    """Three steps, on one batch or on several, in one call and in three."""
    left = []
    for at_once in (True, False):
        group, _ = setting([0, 1, 2], optimiser)
        every = list(group.batches(1, augment=True))
        batches = [every[place] for place in places]
        contrast = contrast_for([0, 1, 2])
        use_kernels(kernels)
        try:
            steps = [
                Step(b, group.updates(("filter", *MODEL), b.active), contrast) for b in batches
            ]
            calls = [steps] if at_once else [[step] for step in steps]
            found = [f for call in calls for f in descend(group.network, group.parts, call)]
        finally:
            use_kernels("auto")
        memory = [value for slot in group.slots.values() for value in slot.values()]
        terms = [value for _, each in found for value in each.values()]
        left.append([found[-1][0], *terms, *group.parts.values(), *memory])
    assert all(torch.equal(one, other) for one, other in zip(*left, strict=True))
    first, *later = (each["prediction"] for _, each in found)
    assert not any(torch.equal(first, other) for other in later)


def test_the_number_of_steps_per_call_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    left = []
    for room in (1, base.ENCODED):
        monkeypatch.setattr(base, "ENCODED", room)
        with job_of("fuels", small_panel(), rounds=2) as job:
            job.loop.run()
            left.append(job.loop.state()[0])
    for name, array in left[0].items():
        np.testing.assert_array_equal(array, left[1][name], err_msg=name)  # NaN equals NaN here


def test_parts_not_named_are_unchanged() -> None:
    before, _ = setting([0, 1, 2])
    after = step("fused", ("decoder",))
    assert torch.equal(after["part encoder"], before.parts["encoder"])
    assert not torch.equal(after["part decoder"], before.parts["decoder"])


def test_stacking_changes_no_bit() -> None:
    names = ("encoder", "decoder", "filter")
    together = step("fused", names)
    for client in range(3):
        alone = step("fused", names, clients=(client,))
        for key, value in alone.items():
            assert torch.equal(value[0], together[key][client]), (client, key)


def test_an_inactive_client_is_unchanged() -> None:
    group, batch = setting([0, 1, 2], augment=False)
    batch.active[:] = torch.tensor([True, False, True])
    before = {name: part.clone() for name, part in group.parts.items()}
    descend(group.network, group.parts, [Step(batch, group.updates(MODEL, batch.active))])
    for name in MODEL:
        assert torch.equal(group.parts[name][1], before[name][1])
        assert not torch.equal(group.parts[name][0], before[name][0])
    assert group.slots["encoder"]["step"].tolist() == [1, 0, 1]


def test_gradients_are_kept_for_all_clients() -> None:
    group, batch = setting([0, 1, 2], augment=False)
    loss, gradient = differentiate(group.network, group.parts, MODEL, batch)
    use_kernels("plain")
    try:
        wanted_loss, wanted = differentiate(group.network, group.parts, MODEL, batch)
    finally:
        use_kernels("auto")
    assert torch.allclose(loss, wanted_loss, rtol=1e-5)
    for name in MODEL:
        assert gradient[name].shape == group.parts[name].shape
        assert torch.allclose(gradient[name], wanted[name], rtol=1e-4, atol=1e-6)


def test_gradients_of_wrong_shape_are_rejected() -> None:
    param, state = torch.zeros(2, 5), torch.zeros(2, 5)
    active, count = torch.ones(2).bool(), torch.zeros(2, dtype=torch.int64)
    for update in (
        Update(adam, param, (state, state.clone(), count, active, 0.1)),
        Update(sgd, param, (state, active, 0.1)),
        Update(proximal, param, (torch.zeros(1, 5), 0.1)),
    ):
        with pytest.raises(FuelsError, match="not fit"):
            update(torch.zeros(2, 4))
        with pytest.raises(FuelsError, match="not fit"):
            update(torch.zeros(1, 5))
        with pytest.raises(FuelsError, match="not fit"):
            update(torch.zeros(2, 5, dtype=torch.float64))


@pytest.mark.parametrize("rows", [1, 3])
def test_a_pull_towards_an_individual_or_shared_anchor(rows: int) -> None:
    draw = torch.Generator().manual_seed(5)
    param, gradient = (torch.randn(3, 37, generator=draw) for _ in range(2))
    anchor = torch.randn(rows, 37, generator=draw)
    wanted = gradient + 0.3 * (param - anchor)
    for kernels in ("fused", "plain"):
        use_kernels(kernels)
        try:
            found = gradient.clone()
            proximal(param, found, anchor, 0.3)
        finally:
            use_kernels("auto")
        torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
    with pytest.raises(FuelsError, match="does not fit"):
        proximal(param, found, torch.zeros(2, 37), 0.3)
