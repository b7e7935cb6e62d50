"""FUELS against the textbook: whole rounds in every variant, and each formula at full width."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fuels.data.panel import Panel
from fuels.paper.losses import inter_loss, intra_loss, prediction_loss, unit
from fuels.randomness import AUGMENTATION, FILTER, generator
from fuels.runs.build import Job
from fuels.training.groups import gradients, leaves
from helpers import oracle, oracle_fuels
from helpers.small_federation import (
    PERIOD,
    assert_same_models,
    far_from_start,
    federation,
    job_of,
    small_panel,
    trained,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore:no dissimilar client"),
    pytest.mark.usefixtures("fused"),
]


def first_filters(job: Job) -> list[torch.Tensor]:
    draws = [
        generator(job.settings.seed, FILTER, client).standard_normal(PERIOD**2)
        for client in job.dataset.ids
    ]
    if job.settings.options["filter_start"] == "positive":
        draws = [np.abs(draw) for draw in draws]
    return [torch.from_numpy(d.astype(np.float32)).view(PERIOD, PERIOD) for d in draws]


def assert_equals_oracle(panel: Panel, rounds: int = 2, **changes: Any) -> None:
    """Models, filters and prototypes of a run equal the textbook's."""
    job = trained("fuels", panel, rounds, **changes)
    fed = federation(job, panel)
    given = {k: v for k, v in changes.get("options", {}).items() if k != "filter_start"}
    options = oracle_fuels.FuelsSettings(**given)
    models, filters, prototypes = oracle_fuels.fuels(
        fed, first_filters(job), job.settings.seed, options
    )
    assert far_from_start(job) > 5e-3
    assert_same_models(job, models, fed)
    for i, W in enumerate(filters):
        ours = job.site.parts["filter"][i].view(PERIOD, PERIOD)
        assert torch.allclose(ours.double(), W, rtol=0, atol=1e-5)
    for i, prototype in enumerate(prototypes):
        np.testing.assert_allclose(job.loop.server.prototypes[i], prototype, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"inter": False},
        {"intra": False},
        {"filter": False},
        {"detach": True},
        {"tau": 0.5, "rho": 0.3, "beta": 20, "shift": 0.3},
        {"filter_start": "positive", "shift": 0.0},
    ],
    ids=lambda options: ",".join(options) or "defaults",
)
def test_variants(options: dict[str, Any]) -> None:
    assert_equals_oracle(small_panel(), options=options)


def test_a_head_that_reads_the_sum_of_the_states() -> None:
    assert_equals_oracle(small_panel(), model={"head": "sum"})


def test_concatenation_prototype() -> None:
    assert_equals_oracle(small_panel(holes=False), options={"periodic": False})


def test_a_share_of_the_clients_and_reused_divergences() -> None:
    assert_equals_oracle(small_panel(), rounds=3, training={"selection": 0.67})


def test_two_local_epochs() -> None:
    assert_equals_oracle(small_panel(), training={"local_epochs": 2})


def test_the_filter_moves_only_where_it_is_positive() -> None:
    """ReLU gives no gradient where W <= 0: those entries stay as drawn."""
    job = trained("fuels", small_panel())
    start = torch.stack(first_filters(job)).flatten(1)
    now = job.site.parts["filter"]
    assert torch.equal(now[start <= 0], start[start <= 0])
    assert (now[start > 0] != start[start > 0]).float().mean() > 0.9


# -- at the paper's width --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def wide() -> tuple[Job, oracle.Federation]:
    """The job before training at hidden 128, and the same for the textbook."""
    panel = small_panel(holes=False)
    job = job_of("fuels", panel, model={"hidden": 128})
    return job, federation(job, panel)


def test_forward_losses_and_gradients_at_hidden_128(wide: tuple[Job, oracle.Federation]) -> None:
    job, fed = wide
    group = job.site.group(np.arange(3), 1)
    batch = next(iter(group.batches(1, augment=True)))
    assert batch.views.shape[1] == 2 * PERIOD  # x and x' below it
    rng = np.random.default_rng(5)
    given = torch.from_numpy(rng.uniform(-1, 1, (2, 3, PERIOD, 256)).astype(np.float32))
    network, names = group.network, ("encoder", "decoder", "filter")
    positive, negative = unit(given)
    ours, slopes = {}, {}
    for key in ("prediction", "intra", "inter"):
        parts = leaves(group.parts, names)
        encoded = network.encode(parts, batch.views, batch.clock)
        r, u = encoded[:, :PERIOD], unit(encoded)
        if key == "prediction":
            said = network.decode(parts, r, batch.x, batch.clock)
            loss = prediction_loss(batch.y[..., 0], said, batch.weight[..., 0])
        elif key == "intra":
            W = parts["filter"].view(3, PERIOD, PERIOD)
            loss = intra_loss(u[:, :PERIOD], u[:, PERIOD:], W, 0.02, batch.row_weight)
        else:
            loss = inter_loss(u[:, :PERIOD], positive, negative, 0.02, batch.row_weight)
        ours[key], slopes[key] = loss.detach(), gradients(loss, names, parts)
    for n, client in enumerate(fed.clients):
        model, theirs = fed.model(), client.batches()[0]
        share = generator(0, AUGMENTATION, client.id, 1, 0).uniform(0.8, 1.0, PERIOD)
        share = torch.from_numpy(share.astype(np.float32)).double()[:, None]
        filter_ = first_filters(job)[n].double().requires_grad_(True)
        textbook_r = model.encode(theirs.x)
        augmented = model.encode(share * theirs.x + (1 - share) * theirs.x_next)
        assert torch.allclose(r[n].double(), textbook_r, rtol=0, atol=1e-6)
        assert torch.allclose(encoded[n, PERIOD:].double(), augmented, rtol=0, atol=1e-6)
        textbook = {
            "prediction": oracle.prediction_loss(model, theirs),
            "intra": oracle_fuels.intra_loss(textbook_r, augmented, filter_, 0.02),
            "inter": oracle_fuels.inter_loss(
                textbook_r, given[0, n].double(), given[1, n].double(), 0.02
            ),
        }
        for key, loss in textbook.items():
            assert float(ours[key][n]) == pytest.approx(float(loss.detach()), rel=2e-5), key
            model.zero_grad()
            loss.backward(retain_graph=True)
            named = network.tensors(slopes[key], n)
            for name, value in model.named().items():
                expected = torch.zeros_like(value) if value.grad is None else value.grad
                scale = max(1.0, float(expected.abs().max()))
                assert (named[name] - expected).abs().max() < 1e-5 * scale, (key, name)
        ours_filter = slopes["intra"]["filter"][n].view(PERIOD, PERIOD)
        assert torch.allclose(ours_filter.double(), filter_.grad, rtol=0, atol=1e-5)


def test_one_epoch_of_updates_at_hidden_128(wide: tuple[Job, oracle.Federation]) -> None:
    job, fed = wide
    job.loop.step()
    fed.chosen = fed.chosen[:1]
    textbook, _, prototypes = oracle_fuels.fuels(
        fed, first_filters(job), 0, oracle_fuels.FuelsSettings()
    )
    assert sum(value.numel() for value in textbook[0].parameters()) == 100865
    assert far_from_start(job) > 5e-3
    assert_same_models(job, textbook, fed)
    for i, prototype in enumerate(prototypes):
        np.testing.assert_allclose(job.loop.server.prototypes[i], prototype, rtol=0, atol=1e-5)
