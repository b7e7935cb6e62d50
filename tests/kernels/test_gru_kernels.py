"""The compiled kernels against torch, and their own promises."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fuels.errors import FuelsError
from fuels.kernels.dispatch import prepare_thread, use_kernels
from fuels.model.gru import GruShape, branch_weights, encode
from fuels.model.optimiser import adam, proximal, sgd
from fuels.paper.divergence import pairwise_jsd
from helpers.panels import distributions

plain_encode = inspect.unwrap(encode)
PAPER = GruShape(hidden=128, branches=((3, 1), (3, 1)))


pytestmark = pytest.mark.usefixtures("fused")


def draw(
    shape: GruShape, clients: int, rows: int, seed: int, scale: float = 1.0
) -> tuple[Tensor, list[Tensor], Tensor]:
    """Parameters as nn.GRU draws them, inputs, and a gradient for the result."""
    generator = torch.Generator().manual_seed(seed)
    uniform = torch.rand(clients, shape.size, generator=generator) * 2 - 1
    inputs = [
        torch.randn(clients, rows, length, width, generator=generator)
        for length, width in shape.branches
    ]
    upstream = torch.randn(clients, rows, shape.width, generator=generator)
    return scale * uniform / shape.hidden**0.5, inputs, upstream


def with_gradient(
    run: object, params: Tensor, inputs: list[Tensor], shape: GruShape, upstream: Tensor
) -> tuple[Tensor, Tensor]:
    leaf = params.clone().requires_grad_()
    out = run(leaf, inputs, shape)  # type: ignore[operator]
    (gradient,) = torch.autograd.grad(out, leaf, upstream)
    return out.detach(), gradient


def assert_near(found: Tensor, wanted: Tensor, tolerance: float) -> None:
    assert found.shape == wanted.shape
    gap = float((found.double() - wanted.double()).abs().max())
    assert gap <= tolerance * max(1.0, float(wanted.abs().max()))


shapes = st.builds(
    GruShape,
    hidden=st.integers(1, 130),
    branches=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 3)), min_size=1, max_size=3).map(
        tuple
    ),
)


@settings(max_examples=15, deadline=None)
@given(shapes, st.integers(1, 5), st.integers(1, 50), st.integers(0, 2**31))
def test_encoder_equals_plain_in_float64(
    shape: GruShape, clients: int, rows: int, seed: int
) -> None:
    params, inputs, upstream = draw(shape, clients, rows, seed)
    out, gradient = with_gradient(encode, params, inputs, shape, upstream)
    exact, exact_gradient = with_gradient(
        plain_encode, params.double(), [x.double() for x in inputs], shape, upstream.double()
    )
    assert_near(out, exact, 1e-6)
    assert_near(gradient, exact_gradient, 1e-6)


def test_encoder_equals_torch_gru_client_by_client() -> None:
    shape = GruShape(hidden=20, branches=((3, 1), (4, 2)))
    params, inputs, upstream = draw(shape, clients=3, rows=7, seed=1)
    out, gradient = with_gradient(encode, params, inputs, shape, upstream)
    weights, gradients = branch_weights(params, shape), branch_weights(gradient, shape)
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    for client in range(3):
        for b, (_, width) in enumerate(shape.branches):
            gru = torch.nn.GRU(width, 20, batch_first=True)
            for name, value in zip(names, weights[b], strict=True):
                getattr(gru, name).data.copy_(value[client])
            _, final = gru(inputs[b][client])
            columns = slice(20 * b, 20 * (b + 1))
            final[0].backward(upstream[client, :, columns])
            assert_near(out[client, :, columns], final[0].detach(), 1e-6)
            for name, value in zip(names, gradients[b], strict=True):
                assert_near(value[client], getattr(gru, name).grad, 1e-6)


@settings(max_examples=10, deadline=None)
@given(shapes, st.integers(1, 200), st.integers(1, 50), st.integers(0, 2**31))
def test_a_row_does_not_depend_on_the_rows_beside_it(
    shape: GruShape, rows: int, at_once: int, seed: int
) -> None:
    """To the last bit: forecasts of saved runs rely on it."""
    params, inputs, _ = draw(shape, 2, rows, seed)
    pieces = [
        encode(params, [x[:, low : low + at_once] for x in inputs], shape)
        for low in range(0, rows, at_once)
    ]
    assert torch.equal(encode(params, inputs, shape), torch.cat(pieces, dim=1))


@pytest.mark.parametrize("rows", [96, 97, 300])
def test_many_rows_are_encoded_in_blocks(rows: int) -> None:
    shape = GruShape(hidden=24, branches=((3, 2),))
    params, inputs, upstream = draw(shape, clients=2, rows=rows, seed=rows)
    out, gradient = with_gradient(encode, params, inputs, shape, upstream)
    plain, plain_gradient = with_gradient(plain_encode, params, inputs, shape, upstream)
    assert_near(out, plain, 1e-6)
    assert_near(gradient, plain_gradient, 1e-6)


def test_results_are_the_same_without_gradients() -> None:
    params, inputs, upstream = draw(PAPER, clients=2, rows=48, seed=3)
    out, _ = with_gradient(encode, params, inputs, PAPER, upstream)
    assert torch.equal(encode(params, inputs, PAPER), out)
    with torch.no_grad():
        assert torch.equal(encode(params.requires_grad_(), inputs, PAPER), out)


def test_a_client_does_not_depend_on_its_group() -> None:
    params, inputs, upstream = draw(PAPER, clients=5, rows=24, seed=4)
    out, gradient = with_gradient(encode, params, inputs, PAPER, upstream)
    alone = with_gradient(encode, params[3:4], [x[3:4] for x in inputs], PAPER, upstream[3:4])
    assert torch.equal(out[3:4], alone[0])
    assert torch.equal(gradient[3:4], alone[1])


def test_inputs_may_be_slices() -> None:
    params, _, upstream = draw(PAPER, clients=2, rows=4, seed=5)
    panel = torch.randn(2, 9, 4, 3, 1, generator=torch.Generator().manual_seed(5))
    sliced, whole = panel[:, 2], panel[:, 2].contiguous()
    assert not sliced.is_contiguous()
    a = with_gradient(encode, params, [sliced, sliced], PAPER, upstream)
    b = with_gradient(encode, params, [whole, whole], PAPER, upstream)
    assert torch.equal(a[0], b[0]) and torch.equal(a[1], b[1])


def test_the_gradient_without_rows_is_0() -> None:
    params, inputs, upstream = draw(PAPER, clients=2, rows=0, seed=3)
    out, gradient = with_gradient(encode, params, inputs, PAPER, upstream)
    assert out.shape == (2, 0, PAPER.width) and not gradient.any()


def test_saturated_gates_are_finite_and_near() -> None:
    params, inputs, upstream = draw(PAPER, clients=1, rows=16, seed=6, scale=60.0)
    out, gradient = with_gradient(encode, params, inputs, PAPER, upstream)
    exact = plain_encode(params.double(), [x.double() for x in inputs], PAPER)
    assert float(out.abs().max()) <= 1.0
    assert bool(gradient.isfinite().all())
    assert_near(out, exact, 1e-4)


def test_nan_is_not_hidden_and_stays_with_its_client() -> None:
    shape = GruShape(hidden=20, branches=((3, 1), (2, 1)))
    params, inputs, upstream = draw(shape, clients=3, rows=8, seed=7)
    clean = with_gradient(encode, params, inputs, shape, upstream)
    params[1, 5] = float("nan")
    found = with_gradient(encode, params, inputs, shape, upstream)
    for before, after in zip(clean, found, strict=True):
        assert bool(after[1].isnan().any())
        assert torch.equal(before[0], after[0]) and torch.equal(before[2], after[2])


def test_a_vanishing_gradient_becomes_zero() -> None:
    """Numbers below 1e-38 would make the products a hundred times slower."""
    params, inputs, _ = draw(PAPER, clients=1, rows=16, seed=20)
    tiny = torch.full((1, 16, PAPER.width), 1000, dtype=torch.int32).view(torch.float32)

    def on_a_fresh_thread() -> bool | None:
        if not torch.set_flush_denormal(False):
            return None
        prepare_thread()
        return bool((with_gradient(encode, params, inputs, PAPER, tiny)[1] == 0).all())

    with ThreadPoolExecutor(1) as pool:
        found = pool.submit(on_a_fresh_thread).result()
    if found is None:
        pytest.skip("this processor cannot flush denormal numbers")
    assert found


def test_a_second_backward_pass_is_rejected() -> None:
    params, inputs, upstream = draw(PAPER, clients=1, rows=2, seed=8)
    leaf = params.requires_grad_()
    out = encode(leaf, inputs, PAPER)
    torch.autograd.grad(out, leaf, upstream, retain_graph=True)
    with pytest.raises(FuelsError, match="second backward"):
        torch.autograd.grad(out, leaf, upstream)


def test_two_forward_passes_before_their_backward_passes() -> None:
    params, inputs, upstream = draw(PAPER, clients=2, rows=6, seed=9)
    other = [x + 1.0 for x in inputs]
    leaf = params.clone().requires_grad_()
    first, second = encode(leaf, inputs, PAPER), encode(leaf, other, PAPER)
    (gradient,) = torch.autograd.grad([first, second], leaf, [upstream, upstream])
    separate = [with_gradient(encode, params, x, PAPER, upstream)[1] for x in (inputs, other)]
    assert_near(gradient, separate[0] + separate[1], 1e-6)


def small_step() -> bytes:
    """Encoder, gradient, Adam and JSD on drawn numbers, to the byte."""
    shape = GruShape(32, ((3, 1), (2, 2)))
    params, inputs, upstream = draw(shape, clients=2, rows=5, seed=18)
    _, grad = with_gradient(encode, params, inputs, shape, upstream)
    m, v, step = torch.zeros_like(grad), torch.zeros_like(grad), torch.zeros(2, dtype=torch.int64)
    adam(params, grad, m, v, step, torch.ones(2).bool(), lr=0.1)
    jsd = np.empty((4, 4), dtype=np.float32)
    pairwise_jsd(distributions(4, 3, 20, seed=19, spread=1.0), np.arange(4), jsd)
    return params.numpy().tobytes() + jsd.tobytes()


CHILD = """
import sys
import test_gru_kernels
test_gru_kernels.use_kernels("fused")
sys.stdout.buffer.write(test_gru_kernels.small_step())
from fuels.kernels import divergence
from fuels.kernels import gru
from fuels.kernels import optimiser
for kernel in (gru.gru_forward, gru.gru_backward, optimiser._adam, divergence.jsd_block):
    if kernel.stats.cache_path and not kernel.stats.cache_hits:
        sys.exit(f"{kernel} was compiled again")
"""


def test_cached_kernels_give_the_same_bytes_in_another_process() -> None:
    here = small_step()  # compiles and fills the cache where that has not been done
    child = [sys.executable, "-c", CHILD]
    here_and_helpers = os.pathsep.join(
        [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    )
    run = subprocess.run(
        child,
        cwd=Path(__file__).parent,
        env=os.environ | {"PYTHONPATH": here_and_helpers},
        capture_output=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr.decode()
    assert run.stdout == here


def test_plain_path_if_kernels_are_unavailable(caplog: pytest.LogCaptureFixture) -> None:
    from fuels.kernels import dispatch

    use_kernels("auto")
    for _ in range(2):
        assert dispatch.find_kernels("fuels.kernels.no_such_kernels") is None
    assert caplog.text.count("using plain torch") == 1
    use_kernels("fused")
    with pytest.raises(FuelsError, match="not available"):
        dispatch.find_kernels("fuels.kernels.no_such_kernels")


def test_float64_takes_the_plain_path_under_auto() -> None:
    params, inputs, _ = draw(PAPER, clients=1, rows=2, seed=16)
    double = [x.double() for x in inputs]
    use_kernels("auto")
    assert encode(params.double(), double, PAPER).dtype == torch.float64
    use_kernels("fused")
    with pytest.raises(FuelsError, match="float32 on the CPU"):
        encode(params.double(), double, PAPER)


def test_wrong_shapes_are_rejected_with_a_message() -> None:
    params, inputs, _ = draw(PAPER, clients=2, rows=3, seed=17)
    with pytest.raises(FuelsError, match="parameters of shape"):
        encode(params[:, 1:], inputs, PAPER)
    with pytest.raises(FuelsError, match="inputs of shapes"):
        encode(params, inputs[:1], PAPER)
    with pytest.raises(FuelsError, match="cannot be built"):
        GruShape(hidden=0, branches=((3, 1),))
    with pytest.raises(FuelsError, match="kernels must be one of auto, fused, plain, not 'fast'"):
        use_kernels("fast")
    state = torch.zeros(2, 8)
    with pytest.raises(FuelsError, match="contiguous"):
        sgd(state.T, state.T, state.T, torch.ones(8).bool(), lr=0.1)
    with pytest.raises(FuelsError, match="contiguous"):
        sgd(state, state.clone(), state.clone(), torch.ones(4).bool()[::2], lr=0.1)
    with pytest.raises(FuelsError, match="contiguous"):
        proximal(torch.zeros(8, 2).T, state.clone(), state, 0.1)
    with pytest.raises(FuelsError, match="float32"):
        pairwise_jsd(np.ones((2, 2, 2)), np.arange(2), np.zeros((2, 2), dtype=np.float32))
    with pytest.raises(FuelsError, match="must lie in"):
        pairwise_jsd(
            np.ones((2, 2, 2), dtype=np.float32), np.array([2]), np.zeros((2, 2), dtype=np.float32)
        )
