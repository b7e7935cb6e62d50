"""A start lent to newcomers by clients alike: who lends, what travels, and how it goes on."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from fuels.errors import FuelsError
from fuels.methods.base import MODEL
from fuels.methods.fuels_start import begin
from fuels.methods.messages import Download, Upload
from fuels.training.groups import Optimiser
from helpers.small_federation import job_of, small_panel, trained


def lending_panel() -> Any:
    """Three clients, of which the first has 4 of 12 training periods."""
    panel = small_panel(holes=False)
    panel.values[: 8 * 6, 0] = np.nan
    return panel


def lending_job(rounds: int = 4, **options: Any) -> Any:
    windows = {"period": 6, "split": "12/0/3", "closeness": 3, "periodicity": 1}
    job = job_of("fuels-start", lending_panel(), rounds, windows=windows, options=options)
    assert job.dataset.ids == ("c0", "c1", "c2")
    return job


def test_models_travel_once_and_a_start_goes_to_newcomers_alone() -> None:
    job = lending_job(lend=2, lenders=2)
    sizes = job.method.facts.network.sizes
    model, prototype = sizes["encoder"] + sizes["decoder"], 6 * 16
    done = [job.loop.step() for _ in range(2)]
    assert [r.numbers_up for r in done] == [prototype, prototype + model]
    # Both others lend: the start is the mean of their models as they stand after round 2.
    site, server = job.site, job.loop.server
    assert list(server.starts) == ["c0"]
    for name in MODEL:
        mean = site.parts[name][1:].double().mean(0).numpy()
        np.testing.assert_allclose(server.starts["c0"][name], mean, atol=1e-7)
    done += [job.loop.step() for _ in range(2)]
    assert [r.numbers_up for r in done[2:]] == [prototype, prototype]
    assert done[2].numbers_down == pytest.approx(model / 3) and not server.starts
    assert done[3].numbers_down <= 2 * prototype


def test_the_most_alike_lend() -> None:
    job = lending_job(lend=1, lenders=1)
    server, size = job.loop.server, job.method.facts.network.sizes
    prototypes = np.zeros((3, 6, 16), np.float32)
    prototypes[1, :, 0], prototypes[2, :, 0] = 0.9, 0.1  # c2 is nearer to c0
    models = {n: np.arange(3, dtype=np.float32)[:, None] * np.ones(size[n], "f4") for n in MODEL}
    samples = np.array([12, 66, 66])
    upload = Upload(("c0", "c1", "c2"), {"prototype": prototypes, **models}, samples)
    job.method.aggregate(server, upload)
    download = job.method.download(server, ("c0", "c1", "c2"))
    assert download.clients == ("c0",) and (download.personal["encoder"] == 2).all()
    assert job.method.download(server, ("c1",)).clients != ("c0",)
    # The state holds the starts that wait.
    other = job.method.server(("c0", "c1", "c2"))
    other.load(server.state())
    assert (job.method.download(other, ("c0",)).personal["decoder"] == 2).all()


def test_a_newcomer_begins_with_its_start_and_a_fresh_optimiser() -> None:
    optimiser = Optimiser("adam", 0.1)
    parts = {name: torch.ones(2, 3) for name in MODEL}
    slots = {name: optimiser.fresh(part) for name, part in parts.items()}
    for slot in slots.values():
        slot["m"] += 1
        slot["step"] += 5
    group: Any = SimpleNamespace(
        ids=("a", "b"), parts=parts, slots=slots, optimiser=optimiser, device=torch.device("cpu")
    )
    personal = {name: np.full((2, 3), 7, np.float32) for name in MODEL}
    begin(group, Download(personal=personal, clients=("b", "z")))
    for name in MODEL:
        assert parts[name].tolist() == [[1] * 3, [7] * 3]
        assert slots[name]["m"].tolist() == [[1] * 3, [0] * 3]
        assert slots[name]["step"].tolist() == [5, 0]


def test_without_newcomers_a_lent_start_is_fuels() -> None:
    panel = small_panel(holes=False)
    plain, lent = (
        trained(name, panel, 3, options=options)
        for name, options in (("fuels", {}), ("fuels-start", {"lend": 1}))
    )
    for name in MODEL:
        assert torch.equal(plain.site.parts[name], lent.site.parts[name])


def test_a_run_with_a_lent_start_goes_on_bit_by_bit() -> None:
    whole = lending_job(lend=2)
    whole.loop.run()
    for stop in (1, 2, 3):
        half, rest = lending_job(lend=2), lending_job(lend=2)
        for _ in range(stop):
            half.loop.step()
        rest.loop.load(*half.loop.state())
        rest.loop.run()
        for name in MODEL:
            assert torch.equal(whole.site.parts[name], rest.site.parts[name])


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"lend": 0}, "lend must be at least 1"),
        ({"lenders": 0}, "lenders"),
        ({"new": 2}, "new must be above 0"),
    ],
)
def test_options_of_lending_that_cannot_work(options: dict[str, Any], match: str) -> None:
    with pytest.raises(FuelsError, match=match):
        lending_job(**options)
