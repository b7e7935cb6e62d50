"""What sites hide from the server, and prototypes in fewer rounds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuels.config import Engine, Settings, merge, to_dict
from fuels.errors import FuelsError
from fuels.paper.similarity import SimilarityTable
from fuels.privacy.hidden import hidden_seed, order_of
from fuels.runs.build import Job, build
from fuels.runs.settings import resolve
from fuels.storage.config_file import read_config, write_toml
from helpers.panels import make_panel
from helpers.runs import small

PANEL = make_panel(clients=7)


def trained(shared: bytes = b"", **changes: Any) -> Job:
    with build(small(**changes), Engine(threads=1), PANEL, shared=shared) as job:
        job.loop.run()
    return job


def test_an_order_is_restored_and_moves_rows_and_columns() -> None:
    order = order_of(0, b"of the sites", 6, 5)
    sent = np.arange(60, dtype=np.float32).reshape(2, 6, 5)
    np.testing.assert_array_equal(order.restore(order.apply(sent)), sent)
    moved = order.apply(sent)
    assert sorted(moved[0].ravel()) == sorted(sent[0].ravel())
    rows = {tuple(sorted(row)) for row in sent[0]}
    assert {tuple(sorted(row)) for row in moved[0]} == rows  # a row stays together
    columns = moved[0] % 5
    assert len({tuple(row) for row in columns}) > 1  # and has an order of its own


def test_secrets_differ_and_do_not_follow_from_the_seed() -> None:
    found = {hidden_seed(0, secret) for secret in (b"", b"one", b"two")}
    assert len(found | {hidden_seed(1, b"one")}) == 4
    assert hidden_seed(0, b"one") == hidden_seed(0, b"one")
    one, two = (order_of(0, secret, 4, 8).source for secret in (b"one", b"two"))
    assert (one != two).any()


def test_the_server_computes_the_same_in_a_secret_order() -> None:
    rng = np.random.default_rng(0)
    prototypes = np.tanh(rng.normal(size=(6, 24, 16))).astype(np.float32)
    clients, order = tuple("abcdef"), order_of(3, b"secret", 24, 16)
    open_, hidden = (SimilarityTable(clients, (24, 16)) for _ in range(2))
    open_.update(clients, prototypes)
    hidden.update(clients, order.apply(prototypes))
    np.testing.assert_allclose(hidden.jsd, open_.jsd, atol=1e-7)
    for plain, moved in zip(
        open_.prototypes_for(clients, 50)[1:], hidden.prototypes_for(clients, 50)[1:], strict=True
    ):
        np.testing.assert_allclose(order.restore(moved), plain, atol=1e-6)


def test_a_secret_order_changes_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = trained()
    monkeypatch.setattr("fuels.methods.base.hidden_seed", lambda seed, secret: seed)
    hidden = trained(privacy={"secret": True})
    np.testing.assert_allclose(hidden.loop.val_mse, plain.loop.val_mse, rtol=1e-4)
    stored, sent = (job.loop.server.prototypes for job in (plain, hidden))
    assert np.abs(sent - stored).max() > 0.1  # the server sees them in another order
    np.testing.assert_allclose(
        np.sort(sent.reshape(7, -1)), np.sort(stored.reshape(7, -1)), atol=1e-4
    )


def test_the_initial_model_follows_from_the_secret_and_not_from_the_seed() -> None:
    def start(shared: bytes, secret: bool) -> Any:
        settings = small(privacy={"secret": secret})
        with build(settings, Engine(threads=1), PANEL, shared=shared) as job:
            return job.site.parts["encoder"][0].numpy().copy()

    known, one, two = start(b"", False), start(b"one", True), start(b"two", True)
    assert (known == start(b"one", False)).all()
    assert (known != one).any() and (one != two).any() and (one == start(b"one", True)).all()
    assert (start(b"", True) != known).any()  # on one machine: from the seed, but another one


def test_prototypes_are_sent_only_in_the_rounds_that_are_due() -> None:
    job = trained(training={"rounds": 6}, privacy={"first": 2, "every": 3})
    assert [job.method.sends_prototypes(number) for number in range(1, 7)] == [
        False, True, False, False, True, False,
    ]  # fmt: skip
    sent = [bool(job.method.uploads(number)) for number in range(1, 7)]
    assert sent == [False, True, False, False, True, False]
    size = 24 * job.method.facts.network.width
    assert job.loop.totals["numbers_up"] == 2 * size * 7
    assert job.loop.totals["numbers_down"] == 4 * 2 * size * 7  # from round 3 on, also in between


def test_clients_that_join_later_get_the_means_after_their_first_prototype() -> None:
    job = trained(
        training={"rounds": 7, "late": "0.3@4"}, privacy={"first": 2, "every": 3, "secret": True}
    )
    assert job.loop.server.known.all() and not job.loop.without_upload


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"privacy": {"first": 0}}, "privacy.first must be at least 1"),
        ({"privacy": {"every": -2}}, "privacy.every must be at least 1"),
        ({"method": "fedavg", "privacy": {"secret": True}}, "settings of the method fuels"),
        ({"method": "fuels-start", "privacy": {"every": 2}}, "settings of the method fuels"),
    ],
)
def test_settings_that_cannot_work_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(FuelsError, match=message):
        resolve(merge(Settings(), changes, "test"))


def test_files_without_the_section_are_as_before(tmp_path: Path) -> None:
    assert "privacy" not in to_dict(Settings())
    settings = merge(Settings(), {"privacy": {"secret": True, "every": 4}}, "test")
    write_toml(tmp_path / "config.toml", settings, Engine())
    assert read_config(tmp_path / "config.toml")[0] == settings
    write_toml(tmp_path / "config.toml", replace(settings, privacy=Settings().privacy), Engine())
    assert read_config(tmp_path / "config.toml")[0] == Settings()
