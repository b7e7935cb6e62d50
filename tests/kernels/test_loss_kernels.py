"""The compiled losses against the plain ones in float64, in every variant, and their promises."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fuels.errors import FuelsError
from fuels.kernels.dispatch import prepare_thread, use_kernels
from fuels.kernels.simd_f64 import combine, dots, exponentials, pairs
from fuels.model.network import Target
from fuels.paper.losses import Inter, Intra, local_losses


@pytest.fixture(autouse=True)
def fused() -> Iterator[None]:
    use_kernels("fused")  # no silent fall-back: a kernel that does not compile fails here
    yield
    use_kernels("auto")


plain_losses = inspect.unwrap(local_losses)
Step = dict[str, Any]  # the arguments of local_losses


def draw(clients: int = 3, B: int = 24, width: int = 256, seed: int = 0, **options: Any) -> Step:
    """A batch with all terms; some rows do not count, the second client has no PR and NR."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    def weights() -> Tensor:
        counts = (torch.rand(clients, B, generator=generator) < 0.8).float()
        return counts / counts.sum(1, keepdim=True).clamp(min=1)

    centre = normal(clients, 1, width)
    r, augmented, positive, negative = (
        torch.tanh(centre + 0.2 * normal(clients, B, width)) for _ in range(4)
    )
    row_weight, has = weights(), torch.ones(clients, 1)
    has[1:2] = 0
    H, columns = options.get("heads", 1), options.get("columns", 0)
    counts = torch.stack([weights() for _ in range(H)], dim=2) / H
    head = width + columns + 1
    tau = options.get("tau", 0.05)
    return {
        "encoded": torch.cat([r, augmented], dim=1),
        "target": Target(normal(clients, B, H), counts, normal(B, H, columns)),
        "intra": Intra(normal(clients, B, B), tau, row_weight, options.get("detach", False)),
        "inter": Inter(positive, negative, tau, row_weight * has, rho=5.0),
        "decoder": normal(clients, H * head) / head**0.5,
    }


def in_double(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.double()
    if isinstance(value, Intra | Inter | Target):
        return replace(value, **{name: in_double(v) for name, v in vars(value).items()})
    return value


def without(step: Step, *names: str) -> Step:
    """The batch without a term; r' goes with L_intra."""
    changed = {name: None if name in names else value for name, value in step.items()}
    if "intra" in names:
        changed["encoded"] = step["encoded"][:, : step["target"].y.shape[1]]
    return changed


def run(losses: Any, step: Step, by: Tensor | None = None) -> dict[str, Tensor]:
    """Loss, terms and gradients; `by` [client] weighs the clients' losses."""
    step = dict(step)
    moving = {name: step[name].clone().requires_grad_(True) for name in ("encoded", "decoder")}
    if step["intra"] is not None and step["intra"].W is not None:
        moving["W"] = step["intra"].W.clone().requires_grad_(True)
        step["intra"] = replace(step["intra"], W=moving["W"])
    total, terms = losses(**step | {name: moving[name] for name in ("encoded", "decoder")})
    down = total.sum() if by is None else (by * total).sum()
    gradients = torch.autograd.grad(down, list(moving.values()))
    found = {f"d {name}": g for name, g in zip(moving, gradients, strict=True)}
    return {"total": total.detach()} | dict(terms) | found


def assert_near(found: dict[str, Tensor], exact: dict[str, Tensor], tolerance: float) -> None:
    assert found.keys() == exact.keys()
    for name, value in exact.items():
        gap = float((found[name].double() - value.double()).norm())
        # A gradient can be nothing at all (vectors of width 1): there only rounding is left.
        assert gap <= tolerance * float(value.norm()) + 1e-12, name


def assert_equals_plain(step: Step) -> dict[str, Tensor]:
    found = run(local_losses, step)
    exact = run(plain_losses, {name: in_double(value) for name, value in step.items()})
    assert_near(found, exact, 2e-7)
    assert all(value.dtype == torch.float32 for value in found.values())
    return found


@pytest.mark.parametrize("left_out", [(), ("intra",), ("inter",), ("intra", "inter")])
def test_terms(left_out: tuple[str, ...]) -> None:
    found = assert_equals_plain(without(draw(), *left_out))
    terms = {"prediction", "intra", "inter"} - set(left_out)
    assert terms <= found.keys() and not found.keys() & set(left_out)
    rho = {"prediction": 1, "intra": 1, "inter": 5}
    assert torch.allclose(found["total"], sum(rho[t] * found[t] for t in terms))


@pytest.mark.parametrize(("B", "heads", "left_out"), [(24, 1, ()), (5, 3, ()), (7, 4, ("intra",))])
def test_the_kernel_uses_only_the_scratch_memory_it_asks_for(
    B: int, heads: int, left_out: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of more it leaves every number as it was, and what it finds there does not matter."""
    around, given = 64, []

    def guarded(size: int) -> Tensor:
        given.append((torch.full((size + 2 * around,), float("nan")), size))
        return given[-1][0][around:]

    monkeypatch.setattr("fuels.kernels.losses.scratch", guarded)
    assert_equals_plain(without(draw(B=B, heads=heads), *left_out))
    ((memory, size),) = given
    assert memory[:around].isnan().all() and memory[around + size :].isnan().all()


def test_without_the_filter() -> None:
    step = draw()
    assert_equals_plain(step | {"intra": replace(step["intra"], W=None)})


def test_detached_view_has_no_gradient() -> None:
    found = assert_equals_plain(draw(detach=True))
    assert not found["d encoded"][:, 24:].any()
    assert found["d encoded"][:, :24].any()


def test_clients_and_rows_that_do_not_count() -> None:
    step = draw()
    found = assert_equals_plain(step)
    assert found["inter"][1] == 0 and (found["inter"][[0, 2]] > 0).all()
    out = (step["intra"].weight == 0) & (step["target"].weight[..., 0] == 0)
    assert out.any()
    assert not found["d encoded"][:, :24][out].any()
    assert not found["d W"].transpose(1, 2)[step["intra"].weight == 0].any()


def test_prediction_by_hand() -> None:
    """Forecasts 1*1 + 2*2 - 1 = 4 and 0*1 + 1*2 - 1 = 1 of 2 and 3: errors 2 and -2."""
    step = {
        "encoded": torch.tensor([[[1.0, 2.0], [0.0, 1.0]]]),
        "decoder": torch.tensor([[1.0, 2.0, -1.0]]),
        "target": Target(
            torch.tensor([[[2.0], [3.0]]]), torch.tensor([[[0.75], [0.25]]]), torch.zeros(2, 1, 0)
        ),
        "intra": None,
        "inter": None,
    }
    found = run(local_losses, step)
    assert found["total"].tolist() == found["prediction"].tolist() == [4.0]
    # slopes in the forecasts: 2 * 0.75 * 2 = 3 and 2 * 0.25 * -2 = -1
    assert found["d encoded"].tolist() == [[[3.0, 6.0], [-1.0, -2.0]]]
    assert found["d decoder"].tolist() == [[3.0, 5.0, 2.0]]


def test_heads_and_the_clock_by_hand() -> None:
    """Two heads, [r | clock | bias]: 2*3 + 1*5 + 1 = 12 of 10, and -2 + 0*4 + 3 = 1 of 2."""
    step = {
        "encoded": torch.tensor([[[2.0]]]),
        "decoder": torch.tensor([[3.0, 5.0, 1.0, -1.0, 4.0, 3.0]]),
        "target": Target(
            torch.tensor([[[10.0, 2.0]]]),
            torch.tensor([[[0.5, 0.25]]]),
            torch.tensor([[[1.0], [0.0]]]),
        ),
        "intra": None,
        "inter": None,
    }
    found = run(local_losses, step)
    assert found["total"].tolist() == [0.5 * 4 + 0.25 * 1]
    # slopes in the forecasts: 2 * 0.5 * 2 = 2 and 2 * 0.25 * -1 = -0.5
    assert found["d encoded"].tolist() == [[[2 * 3.0 + -0.5 * -1.0]]]
    assert found["d decoder"].tolist() == [[4.0, 2.0, 2.0, -1.0, 0.0, -0.5]]


@settings(max_examples=25, deadline=None)
@given(st.data(), st.integers(1, 4), st.integers(1, 30), st.integers(1, 70))
def test_any_shape(data: st.DataObject, clients: int, B: int, width: int) -> None:
    seed, heads = data.draw(st.integers(0, 2**31)), data.draw(st.integers(1, 4))
    columns = data.draw(st.integers(0, 30))
    step = draw(clients, B, width, seed, tau=0.5, heads=heads, columns=columns)
    assert_equals_plain(step)


def test_row_of_zeros() -> None:
    """Its length is taken for 1e-8, as by torch: finite, and like the plain path."""
    step = draw()
    step["encoded"][0, 3] = 0.0
    step["encoded"][2, 30] = 0.0
    assert_equals_plain(step)


def test_nan_in_gives_nan_out() -> None:
    for row in (3, 30):
        step = draw()
        step["intra"].weight.fill_(1 / 24)
        step["encoded"][0, row, 5] = float("nan")
        found = run(local_losses, step)
        assert found["total"].isnan().tolist() == [True, False, False]


def test_each_client_has_the_gradient_of_its_own_loss() -> None:
    step = draw()
    once, weighed = run(local_losses, step), run(local_losses, step, torch.tensor([2.0, 1.0, -3.0]))
    for name in ("d encoded", "d decoder", "d W"):
        assert torch.equal(weighed[name][0], 2 * once[name][0])
        assert torch.equal(weighed[name][1], once[name][1])
        assert torch.equal(weighed[name][2], -3 * once[name][2])


def test_stacking_and_threads_change_no_bit() -> None:
    step = draw(clients=5, heads=3, columns=7)

    def of(client: int, value: Any) -> Any:
        if isinstance(value, Tensor):
            return value[client : client + 1]
        if isinstance(value, Intra | Inter | Target):
            own = {name: of(client, v) for name, v in vars(value).items() if name != "clock"}
            return replace(value, **own)
        return value

    together = run(local_losses, step)
    with ThreadPoolExecutor(2, initializer=prepare_thread) as pool:
        steps = [{name: of(c, value) for name, value in step.items()} for c in range(5)]
        alone = list(pool.map(lambda one: run(local_losses, one), steps))
    for name, value in together.items():
        assert torch.equal(value, torch.cat([one[name] for one in alone])), name


def test_a_frozen_part_costs_no_gradient() -> None:
    step = without(draw(), "intra", "inter")
    decoder = step["decoder"].clone().requires_grad_(True)
    total, _ = local_losses(decoder, step["encoded"], step["target"])
    (found,) = torch.autograd.grad(total.sum(), decoder)
    assert torch.equal(found, run(local_losses, step)["d decoder"])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("encoded", torch.zeros(3, 24, 256)),
        ("target.weight", torch.zeros(3, 23, 1)),
        ("target.clock", torch.zeros(24, 2, 0)),
        ("decoder", torch.zeros(3, 200)),
        ("intra.W", torch.zeros(3, 24, 23)),
        ("intra.weight", torch.zeros(2, 24)),
        ("inter.negative", torch.zeros(3, 12, 256)),
    ],
)
def test_wrong_shapes_are_rejected(name: str, value: Tensor) -> None:
    step = draw()
    term, _, field = name.partition(".")
    step[term] = replace(step[term], **{field: value}) if field else value
    with pytest.raises(FuelsError, match=f"losses: {name} of shape"):
        run(local_losses, step)


# -- the sums themselves ---------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 20), st.integers(1, 20), st.integers(1, 150), st.integers(0, 2**31))
def test_products_and_combinations(rows: int, columns: int, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    a, b, own = (rng.standard_normal((n, width)).astype(np.float32) for n in (rows, columns, rows))
    products, diagonal = np.zeros((rows, columns)), np.zeros(rows)
    dots(
        a.ctypes.data, width, rows, b.ctypes.data, width, columns, width,
        products.ctypes.data, columns,
    )  # fmt: skip
    pairs(a.ctypes.data, width, rows, own.ctypes.data, width, width, diagonal.ctypes.data)
    wide = a.astype(np.float64)
    np.testing.assert_allclose(products, wide @ b.T.astype(np.float64), rtol=0, atol=1e-12)
    np.testing.assert_allclose(diagonal, (wide * own).sum(1), rtol=0, atol=1e-12)
    scale, out = rng.standard_normal(rows), np.zeros((rows, width), dtype=np.float32)
    terms = np.array([[scale.ctypes.data, own.ctypes.data, width]])
    combine(
        products.ctypes.data, columns, 1, b.ctypes.data, width, columns, terms.ctypes.data, 1,
        rows, out.ctypes.data, width, width,
    )  # fmt: skip
    expected = products @ b.astype(np.float64) + scale[:, None] * own
    np.testing.assert_allclose(out, expected, rtol=1e-6, atol=1e-7 * np.abs(expected).max())


def test_exponentials() -> None:
    x = np.concatenate([-np.geomspace(1e-12, 700.0, 999), [0.0, -1e6, -np.inf, np.nan]])
    found = x.copy()
    exponentials(found.ctypes.data, len(found))
    np.testing.assert_allclose(found[:-3], np.exp(x[:-3]), rtol=2e-14)
    assert found[-3] == found[-2] == 0 and np.isnan(found[-1])
