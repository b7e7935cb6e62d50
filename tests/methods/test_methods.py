"""Every method against its textbook version, in its limits, and what it sends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from fuels.config import Engine, Settings, merge
from fuels.data.panel import Panel
from fuels.errors import FuelsError
from fuels.federation.transport import LocalTransport
from fuels.methods.base import MODEL
from fuels.methods.fedrep import FedRep
from fuels.methods.registry import METHODS
from fuels.runs.build import Job, build
from fuels.runs.settings import resolve
from helpers import oracle, oracle_fedda
from helpers.small_federation import (
    TRAIN,
    assert_same_models,
    evaluated_models,
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


# -- against the textbook --------------------------------------------------------------------------


@pytest.mark.parametrize(("epochs", "selection"), [(1, 1.0), (2, 0.67)])
@pytest.mark.parametrize("method", ["solo", "fedavg", "fedprox", "fedrep"])
def test_methods_with_the_common_optimiser(method: str, epochs: int, selection: float) -> None:
    panel = small_panel()
    options: dict[str, Any] = {"fedprox": {"mu": 0.5}, "fedrep": {"head_epochs": 2}}.get(method, {})
    job = trained(
        method,
        panel,
        options=options,
        training={"local_epochs": epochs, "selection": selection},
    )
    fed = federation(job, panel)
    textbook = {
        "solo": lambda: oracle.solo(fed),
        "fedavg": lambda: oracle.fedavg(fed),
        "fedprox": lambda: oracle.fedavg(fed, mu=0.5),
        "fedrep": lambda: oracle.fedrep(fed, head_epochs=2),
    }[method]()
    assert far_from_start(job) > 5e-3
    assert_same_models(job, textbook, fed)


def test_a_head_that_reads_the_sum_of_the_states() -> None:
    panel = small_panel()
    job = trained("fedrep", panel, options={"head_epochs": 2}, model={"head": "sum"})
    fed = federation(job, panel)
    assert job.site.parts["decoder"].shape == (3, 8 + 1)
    assert_same_models(job, oracle.fedrep(fed, head_epochs=2), fed)


@pytest.mark.parametrize("outer", ["next", "every"])
@pytest.mark.parametrize("variant", ["fo", "hf"])
def test_perfedavg(variant: str, outer: str) -> None:
    panel, steps = small_panel(), 1 if outer == "next" else 2
    options = {"variant": variant, "outer": outer, "alpha": 0.05, "steps": steps}
    training = {"local_epochs": 2} if outer == "next" else {"selection": 0.67}
    job = trained("perfedavg", panel, options=options, training=training)
    fed = federation(job, panel)
    textbook = oracle.perfedavg(fed, range(3, TRAIN), variant, 0.05, outer=outer, steps=steps)
    assert_same_models(job, textbook, fed)


@pytest.mark.parametrize(
    "options",
    [{"lam": 0.1, "eta": 5.0}, {"beta": 0.7, "personal_rate": 0.05, "lam": 15.0, "eta": 0.02}],
)
def test_pfedme(options: dict[str, float]) -> None:
    panel = small_panel()
    job = trained("pfedme", panel, options=options, training={"selection": 0.67})
    fed = federation(job, panel)
    personal, shared = oracle.pfedme(fed, **options)
    assert_same_models(job, personal, fed)
    parts = {n: torch.from_numpy(v)[None] for n, v in job.loop.server.parts.items()}
    named = job.method.facts.network.tensors(parts, 0)
    for name, value in shared.named().items():
        assert torch.allclose(named[name].double(), value, rtol=0, atol=1e-5), name


@pytest.mark.parametrize("places", [True, False])
@pytest.mark.parametrize("selection", [1.0, 0.67])
def test_fedda(selection: float, places: bool) -> None:
    panel = small_panel()
    if not places:
        panel = Panel(panel.values, panel.ids, panel.start, panel.step)
    options = {"clusters": 2, "rho": 0.2, "week": 2, "warm_epochs": 8, "warm_rate": 0.05}
    job = trained("fedda", panel, 3, options=options, training={"selection": selection})
    fed = federation(job, panel)
    textbook, labels = oracle_fedda.fedda(fed, **options)
    assert len(set(labels)) == 2
    assert job.loop.server.labels.tolist() == labels.tolist()
    assert_same_models(job, textbook, fed)


# -- limits ----------------------------------------------------------------------------------------


def assert_identical(one: Job, other: Job) -> None:
    first, second = evaluated_models(one), evaluated_models(other)
    for name in MODEL:
        assert torch.equal(first[name], second[name]), name
    assert far_from_start(one) > 1e-3


def test_fedprox_without_mu_is_fedavg() -> None:
    panel = small_panel()
    assert_identical(trained("fedprox", panel, options={"mu": 0}), trained("fedavg", panel))


class NothingPersonal(FedRep):
    stays = ()
    shares = MODEL


def test_fedrep_with_nothing_personal_is_fedavg(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METHODS, "fedrep", f"{__name__}:NothingPersonal")
    panel = small_panel()
    assert_identical(trained("fedrep", panel), trained("fedavg", panel))


def test_fuels_without_contrastive_terms_is_solo() -> None:
    panel = small_panel()
    without = {"intra": False, "inter": False}
    assert_identical(trained("fuels", panel, options=without), trained("solo", panel))


@pytest.mark.parametrize("calendar", [[], ["time", "free"]])
def test_another_encoder_is_trained(calendar: list[str]) -> None:
    """FUELS encodes twice as many rows as a period has steps, whether the clock tells or not."""
    panel, windows = small_panel(), {"calendar": calendar}
    job = trained("fuels", panel, model={"encoder": "linear"}, windows=windows)
    assert far_from_start(job) > 1e-3
    assert np.isfinite(job.site.forecast(evaluated_models(job), "test")).all()


def test_the_farthest_horizon_is_trained() -> None:
    """One row has a target so far ahead, and the head of that step learns from it."""
    job = trained("solo", small_panel(), windows={"horizon": 54})
    start = job.method.facts.network.initial(0)["decoder"].reshape(54, -1)
    heads = evaluated_models(job)["decoder"].numpy().reshape(3, 54, -1)
    assert (np.abs(heads[0] - start).max(axis=1) > 1e-4).all()


def test_one_client_under_fedavg_with_plain_sgd_is_solo() -> None:
    panel = small_panel(clients=1, holes=False)
    plain = {"optimiser": "sgd", "learning_rate": 0.05}
    assert_identical(
        trained("fedavg", panel, training=plain), trained("solo", panel, training=plain)
    )


def test_first_order_perfedavg_without_adaptation_is_fedavg() -> None:
    panel = small_panel()
    options = {"variant": "fo", "alpha": 0, "outer": "every"}
    assert_identical(trained("perfedavg", panel, options=options), trained("fedavg", panel))


def test_fedda_with_one_cluster_and_no_warm_up_pull_weighs_by_distance_alone() -> None:
    """With one client in a round attention has one entry: the global model is that client's."""
    panel = small_panel(clients=1, holes=False)
    options = {"week": 2, "warm_epochs": 2, "rho": 0}
    job = trained("fedda", panel, 2, options=options)
    server = job.loop.server
    download = job.method.download(server, panel.ids)
    again = job_of("fedda", panel, 2, options=options)
    again.loop.step()
    upload, _ = again.site.train(2, panel.ids, again.method.download(again.loop.server, panel.ids))
    for name in MODEL:
        np.testing.assert_allclose(download.shared[name], upload.arrays[name][0], atol=1e-7)


# -- what travels ----------------------------------------------------------------------------------


def day_panel() -> Panel:
    """Three clients, 51 days of 24 hours: the paper's sizes."""
    hours = np.arange(51 * 24)
    values = np.stack([100 + 30 * np.sin(hours / 24 * 2 * np.pi + n) for n in range(3)], axis=1)
    values += np.random.default_rng(3).standard_normal(values.shape)
    return Panel(
        values,
        ("a", "b", "c"),
        np.datetime64("2013-11-01T00:00:00", "s"),
        np.timedelta64(3600, "s"),
    )


NUMBERS = {  # up and down per client in a round
    "solo": (0, 0),
    "fuels": (6144, 2 * 6144),
    "fedavg": (100865, 100865),
    "fedprox": (100865, 100865),
    "fedrep": (100608, 100608),
    "perfedavg": (100865, 100865),
    "pfedme": (100865, 100865),
    "fedda": (100865, 100865),
}


@pytest.mark.parametrize("method", NUMBERS)
def test_numbers_sent_at_the_papers_sizes(method: str) -> None:
    changes = {"method": method, "windows": {"split": "40/0/11"}}
    job = build(merge(Settings(), changes, "test"), Engine(threads=1), day_panel())
    facts, up = job.method.facts, job.method.uploads(2)
    assert facts.network.sizes == {"encoder": 100608, "decoder": 257}
    assert sum(int(np.prod(sent.shape)) for sent in up.values()) == NUMBERS[method][0]
    down = job.method.downloads()
    assert sum(int(np.prod(sent.shape)) for sent in down.values()) == NUMBERS[method][1]


def test_fedda_sends_its_set_once_and_says_that_it_is_raw() -> None:
    changes = {"method": "fedda", "windows": {"split": "40/0/11"}, "model": {"hidden": 4}}
    changes |= {"options": {"warm_epochs": 1}, "training": {"rounds": 3}}
    job = build(merge(Settings(), changes, "test"), Engine(threads=1), day_panel())
    declared = job.method.uploads(1)
    assert {name: (sent.shape, sent.raw) for name, sent in declared.items()} == {
        "augmented": ((144,), True),
        "place": ((3,), True),
    }
    assert not any(sent.raw for sent in job.method.uploads(2).values())
    size = sum(job.method.facts.network.sizes.values())
    rounds = [job.loop.step() for _ in range(3)]
    assert [r.numbers_up for r in rounds] == [147, size, size]
    assert [r.numbers_down for r in rounds] == [0, size, size]
    assert job.loop.totals["numbers_up"] == 3 * 147 + 2 * size  # 10 % of 3 clients is one


@pytest.mark.parametrize("method", METHODS)
def test_numbers_counted_in_a_run_are_those_declared(method: str) -> None:
    options = {"week": 2, "warm_epochs": 1} if method == "fedda" else {}
    job = job_of(method, small_panel(), 2, options=options)
    rounds = [job.loop.step() for _ in range(2)]
    for number, done in enumerate(rounds, start=1):
        declared = job.method.uploads(number)
        assert done.numbers_up == sum(int(np.prod(sent.shape)) for sent in declared.values())
    down = sum(int(np.prod(sent.shape)) for sent in job.method.downloads().values())
    # In FUELS with three clients the one in the middle may have nobody unlike it.
    assert rounds[1].numbers_down == pytest.approx(down, rel=0.34 if method == "fuels" else 0)


@pytest.mark.parametrize("method", METHODS)
def test_a_run_goes_on_from_its_state_bit_by_bit(method: str) -> None:
    options = {"week": 2, "warm_epochs": 1} if method == "fedda" else {}
    panel = small_panel()
    whole = trained(method, panel, 4, options=options)
    half = job_of(method, panel, 4, options=options)
    half.loop.step()
    half.loop.step()
    rest = job_of(method, panel, 4, options=options)
    rest.loop.load(*half.loop.state())
    rest.loop.run()
    first, second = evaluated_models(whole), evaluated_models(rest)
    for name in MODEL:
        assert torch.equal(first[name], second[name]), name


@pytest.mark.parametrize("method", METHODS)
def test_groups_and_threads_change_nothing(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client's result does not depend on whom it is stacked with."""
    options = {"week": 2, "warm_epochs": 1} if method == "fedda" else {}
    panel = small_panel()
    together = evaluated_models(trained(method, panel, 2, options=options))
    monkeypatch.setattr("fuels.federation.site.GROUP", 1)
    alone = evaluated_models(trained(method, panel, 2, options=options))
    for name in MODEL:
        assert torch.allclose(together[name], alone[name], rtol=0, atol=1e-5), name


# -- a method's own settings -----------------------------------------------------------------------


def test_fedda_trains_by_its_own_settings_unless_told_otherwise() -> None:
    own = resolve(Settings(method="fedda")).training
    assert (own.optimiser, own.learning_rate, own.momentum) == ("sgd", 0.01, 0.9)
    assert own.selection == 0.1
    told = {"training": {"optimiser": "adam", "learning_rate": 0.002, "selection": 1.0}}
    given = resolve(merge(Settings(method="fedda"), told, "test")).training
    assert (given.optimiser, given.learning_rate, given.selection) == ("adam", 0.002, 1.0)


@pytest.mark.parametrize("method", [name for name in METHODS if name != "fedda"])
def test_all_others_have_the_papers_budget(method: str) -> None:
    training = resolve(Settings(method=method)).training
    assert (training.optimiser, training.learning_rate) == ("adam", 0.001)
    assert (training.selection, training.local_epochs) == (1.0, 1)


def test_a_client_without_a_set_is_a_cluster_of_its_own() -> None:
    """A client that joins FedDA after round 1 trains with the others and has no cluster."""
    panel = small_panel()
    options = {"week": 2, "warm_epochs": 1, "clusters": 2}
    job = job_of("fedda", panel, 3, options=options, training={"late": "0.34@2", "selection": 1.0})
    rounds = [job.loop.step() for _ in range(3)]
    assert [r.clients for r in rounds] == [2, 3, 3]
    assert (job.loop.server.labels == -1).sum() == 1
    assert np.isfinite(job.loop.server.models).all()


class Forgetful(LocalTransport):
    """A site that sends the augmented set again, undeclared, in round 2."""

    def train(self, round_number: int, clients: Any, download: Any) -> Any:
        return super().train(1, clients, download)


def test_what_is_declared_for_round_1_is_refused_in_round_2() -> None:
    panel = small_panel()
    job = job_of("fedda", panel, 3, options={"week": 2, "warm_epochs": 1})
    job.loop.step()
    job.loop.transport = Forgetful(job.site)
    with pytest.raises(FuelsError, match=r"round 2.*undeclared arrays \['augmented', 'place'\]"):
        job.loop.step()


@pytest.mark.parametrize(
    ("method", "options", "words"),
    [
        ("fedprox", {"mu": -1}, "options.mu"),
        ("fedrep", {"head_epochs": 0}, "options.head_epochs"),
        ("perfedavg", {"variant": "second"}, "fo or hf"),
        ("perfedavg", {"outer": "all"}, "next or every"),
        ("perfedavg", {"alpha": -0.1}, "options.alpha"),
        ("perfedavg", {"delta": 0}, "options.delta"),
        ("perfedavg", {"steps": 0}, "options.steps"),
        ("pfedme", {"inner_steps": 0}, "options.inner_steps"),
        ("pfedme", {"lam": 0}, "options.lam"),
        ("pfedme", {"personal_rate": -1}, "options.personal_rate"),
        ("fedda", {"clusters": 0}, "options.clusters"),
        ("fedda", {"warm_rate": 0}, "options.warm_rate"),
        ("fedda", {}, "options.week"),
        ("fedavg", {"mu": 1}, "no option options.mu"),
    ],
)
def test_options_that_cannot_work_are_refused(
    method: str, options: Mapping[str, Any], words: str
) -> None:
    with pytest.raises(FuelsError, match=words):
        job_of(method, small_panel(), options=options)
