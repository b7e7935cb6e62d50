"""Attacks stay inside what the defence accepts, and the experiment counts honest clients only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuels.config import Defence, Engine, Settings, merge
from fuels.data.writers import write_panel
from fuels.errors import FuelsError
from fuels.methods.admission import admitted
from fuels.methods.aggregation import aggregated
from fuels.research.attacks import ATTACKS, Attack, PoisonedTransport, attackers
from fuels.research.experiments import poisoning
from fuels.research.experiments.base import Context
from fuels.research.study.store import Store
from fuels.runs.settings import resolve
from helpers.panels import make_panel
from helpers.small_federation import job_of, small_panel

pytestmark = pytest.mark.filterwarnings("ignore:nothing to share")
STRICT = {"clip": 1.5, "admission": 3.0}


def uploaded(method: str, attack: Attack, **defence: Any) -> tuple[Any, Any, Any]:
    """What eight clients trained and what was sent, two of them false; and what they got."""
    sent = []
    for false in ((), ("c0", "c5")):
        job = job_of(method, small_panel(8, holes=False), defence=defence)
        settings = job.settings.defence
        if false:
            job.loop.transport = PoisonedTransport(job.site, false, attack, settings, 0)
        got = job.method.download(job.loop.server, job.loop.clients)
        [reply], _ = job.loop.transport.train(1, job.loop.clients, got)
        sent.append(reply.upload)
    return *sent, got


@pytest.mark.parametrize("name", [name for name in ATTACKS if name != "roll"])
def test_false_models_are_as_long_as_the_bound_and_admitted(name: str) -> None:
    trained, sent, got = uploaded("fedavg", ATTACKS[name], **STRICT)

    def updates(upload: Any) -> np.ndarray:
        return np.concatenate([a - got.shared[n] for n, a in upload.arrays.items()], axis=1)

    honest, moved = updates(trained), updates(sent)
    assert (np.delete(moved, [0, 5], 0) == np.delete(honest, [0, 5], 0)).all()
    assert not np.allclose(moved[[0, 5]], honest[[0, 5]])
    norms = np.linalg.norm(moved, axis=1)
    bound = 1.5 * np.median(np.linalg.norm(np.delete(honest, [0, 5], 0), axis=1))
    if ATTACKS[name].stretches:
        np.testing.assert_allclose(norms[[0, 5]], bound, rtol=1e-3)
    if name != "mimic":  # the least typical client is not admitted itself
        assert admitted(moved.astype(np.float32)[:, None, :], 3.0)[[0, 5]].all()


def test_attackers_who_know_the_joint_bound_choose_what_moves_the_model_farthest() -> None:
    """The server would use less of a long common push than of a short one, or one with noise."""
    defence = {**STRICT, "joint": 3.0}
    settings = merge(Settings(), {"defence": defence}, "test").defence
    pushes = []
    for given in (STRICT, defence):
        _, sent, got = uploaded("fedavg", ATTACKS["constant"], **given)
        moved = np.concatenate([a - got.shared[n] for n, a in sent.arrays.items()], axis=1)
        assert admitted(moved.astype(np.float32)[:, None, :], 3.0)[[0, 5]].all()
        new = aggregated(sent.arrays, sent.weights, got.shared, settings)
        pushes.append(sum(float((new[n] - got.shared[n]).sum()) for n in new))
    assert pushes[1] >= pushes[0] and not np.allclose(*pushes)


@pytest.mark.parametrize("name", list(ATTACKS))
def test_false_prototypes_pass_the_guard_and_admission(name: str) -> None:
    trained, sent, _ = uploaded("fuels", ATTACKS[name], admission=3.0)
    before, after = trained.arrays["prototype"], sent.arrays["prototype"]
    assert np.abs(after).max() <= 1 and after.dtype == np.float32
    assert (np.delete(after, [0, 5], 0) == np.delete(before, [0, 5], 0)).all()
    if name != "roll":
        assert not np.allclose(after[[0, 5]], before[[0, 5]])


def test_without_a_defence_attackers_send_what_they_want() -> None:
    trained, sent, _ = uploaded("fuels", ATTACKS["roll"])
    before, after = trained.arrays["prototype"], sent.arrays["prototype"]
    np.testing.assert_array_equal(after[0], np.roll(before[0], before.shape[1] // 2, axis=0))
    trained, sent, got = uploaded("fedavg", ATTACKS["scaled"])
    start = got.shared["decoder"]
    update = trained.arrays["decoder"][5] - start
    np.testing.assert_allclose(sent.arrays["decoder"][5] - start, -10 * update, atol=1e-5)


def test_fewer_attackers_are_among_more() -> None:
    clients = [f"c{n}" for n in range(20)]
    few, many = (set(attackers(clients, share, seed=3)) for share in (0.1, 0.4))
    assert len(few) == 2 and len(many) == 8 and few < many
    assert attackers(clients, 0.0, 3) == ()


@pytest.fixture(scope="module")
def panel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("poisoning") / "panel.npz"
    write_panel(make_panel(clients=10, days=40, start="2012-03-01"), path)
    return path


def context(panel: Path, folder: Path, **options: str) -> Context:
    experiment = poisoning.EXPERIMENT
    return Context(
        sources=(str(panel),),
        clients=10,
        rounds=2,
        out=folder,
        changes={"model": {"hidden": 4}},
        engine=Engine(threads=1),
        store=Store(folder / "store"),
        options=experiment.own_options(options),
    )


def test_the_experiment_compares_the_same_honest_clients(
    panel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"attacks": "scaled", "defences": "robust", "shares": "20,40"}
    found = poisoning.EXPERIMENT.result(context(panel, tmp_path, **options))
    rows = found.tables["poisoning-fedavg"].rows
    assert [row[:3] for row in rows] == [
        ["off", "none", 0],
        ["off", "update scaled by -10", 20],
        ["off", "update scaled by -10", 40],
        ["robust", "none", 0],
        ["robust", "update scaled by -10", 20],
        ["robust", "update scaled by -10", 40],
    ]
    assert rows[0][3:5] == ["0.0", "0.0"]
    assert float(str(rows[1][3])) > 5, "without a defence the attack must do harm"
    assert float(str(rows[4][3])) < float(str(rows[1][3]))
    [said] = [sentence for sentence in found.text if "FedAvg, defence robust" in sentence]
    assert said.index("with 20 % attackers") < said.index("with 40 % attackers")
    for method in poisoning.METHODS:  # with one seed, its figures are the means
        means = found.tables[f"poisoning-{method}"].rows
        assert [row[:3] for row in means] == [row[:3] for row in rows]
        seeds = found.data[f"poisoning-{method}-seeds"].rows
        assert seeds == [[*row[:3], 0, *row[3:5]] for row in means]
    # Again: everything comes from the store.
    monkeypatch.setattr(poisoning, "train", None)
    again = poisoning.EXPERIMENT.result(context(panel, tmp_path, **options))
    assert again.tables["poisoning-fuels"].rows == found.tables["poisoning-fuels"].rows
    assert again.text == found.text


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"attacks": "flip"}, "unknown flip"),
        ({"defences": "robst"}, "did you mean robust"),
        ({"methods": "solo"}, "unknown solo"),
        ({"shares": "50"}, "below 50"),
        ({"shares": "many"}, "takes comma-separated numbers"),
    ],
)
def test_wrong_options(options: dict[str, str], reason: str, panel: Path, tmp_path: Path) -> None:
    with pytest.raises(FuelsError, match=reason):
        list(poisoning.cases(context(panel, tmp_path, **options)))


def test_every_defence_is_one_that_runs_accept() -> None:
    for name, changes in poisoning.DEFENCES.items():
        settings = resolve(merge(Settings(), {"defence": changes}, name))
        assert (settings.defence == Defence()) == (name == "off")
