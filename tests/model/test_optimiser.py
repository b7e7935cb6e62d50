"""Adam and SGD of stacked clients against torch.optim, plain and compiled."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fuels.kernels.dispatch import use_kernels
from fuels.model.optimiser import adam, sgd

pytestmark = pytest.mark.usefixtures("fused")


@pytest.mark.parametrize("kernels", ["fused", "plain"])
def test_adam_equals_torch_with_clients_sitting_out(kernels: str) -> None:
    use_kernels(kernels)
    rng = np.random.default_rng(10)
    size = 37
    start = torch.from_numpy(rng.normal(size=(3, size)).astype(np.float32))
    param, m, v = start.clone(), torch.zeros(3, size), torch.zeros(3, size)
    step = torch.zeros(3, dtype=torch.int64)
    singles = [row.clone().requires_grad_() for row in start]
    optimisers = [torch.optim.Adam([single], lr=0.01) for single in singles]
    for _ in range(20):
        grad = torch.from_numpy(rng.normal(size=(3, size)).astype(np.float32))
        active = torch.from_numpy(rng.random(3) < 0.7)
        before = param.clone()
        adam(param, grad, m, v, step, active, lr=0.01)
        for client, single in enumerate(singles):
            if active[client]:
                single.grad = grad[client].clone()
                optimisers[client].step()
            else:
                assert torch.equal(param[client], before[client])
    counts = [
        int(optimiser.state[s]["step"]) for optimiser, s in zip(optimisers, singles, strict=True)
    ]
    assert step.tolist() == counts
    torch.testing.assert_close(param, torch.stack(singles).detach(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kernels", ["fused", "plain"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_equals_torch_with_clients_sitting_out(kernels: str, momentum: float) -> None:
    use_kernels(kernels)
    rng = np.random.default_rng(11)
    start = torch.from_numpy(rng.normal(size=(2, 21)).astype(np.float32))
    param, buffer = start.clone(), torch.zeros(2, 21)
    singles = [row.clone().requires_grad_() for row in start]
    optimisers = [torch.optim.SGD([single], lr=0.1, momentum=momentum) for single in singles]
    for turn in range(20):
        grad = torch.from_numpy(rng.normal(size=(2, 21)).astype(np.float32))
        active = torch.tensor([turn % 3 != 1, True])
        sgd(param, grad, buffer, active, lr=0.1, momentum=momentum)
        for client, single in enumerate(singles):
            if active[client]:
                single.grad = grad[client].clone()
                optimisers[client].step()
    torch.testing.assert_close(param, torch.stack(singles).detach(), rtol=0, atol=1e-6)
