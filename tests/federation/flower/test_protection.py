"""What a site demands for its prototypes, and the secret that all sites share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuels.config import Engine, merge
from fuels.errors import FuelsError
from fuels.federation.flower.folders import Consent, RefusalError
from fuels.federation.flower.pki import SHARED
from fuels.federation.flower.protection import check_protection, prototypes_sent
from fuels.runs.build import build
from helpers.flower_world import SITES, World, fuels, settings
from helpers.panels import make_panel

HIDDEN = {"privacy": {"secret": True}}


def hidden_world(root: Path, **changes: Any) -> World:
    return World(root, merge(settings(rounds=3), {**HIDDEN, **changes}, "test"))


def secret_at(world: World, site: str) -> Path:
    return world.root / "sites" / site / SHARED


def test_a_federation_hides_model_and_order_from_the_server(tmp_path: Path) -> None:
    """The server's table is that of one machine with the same secret; the secret never travels."""
    world = hidden_world(tmp_path / "fed")
    secret = secret_at(world, "north").read_bytes()
    assert {secret_at(world, site).read_bytes() for site in SITES} == {secret}
    assert secret_at(world, "north").stat().st_mode & 0o777 == 0o600
    world.run()
    source = {"data": {"source": str(world.root / "panel.csv")}}
    with build(merge(world.settings, source, "test"), Engine(threads=1), shared=secret) as job:
        job.loop.step()
        known = dict(zip(job.loop.clients, job.loop.server.state()["prototypes"], strict=True))
    for client, sent in world.uploads(1).items():
        np.testing.assert_allclose(sent["prototype"], known[client], atol=1e-5)
    for _, _, _, content in (*world.network.got, *world.network.sent):
        assert secret not in content and secret.hex().encode() not in content
    server = [file for file in (world.root / "server").rglob("*") if file.is_file()]
    assert server and not any(secret in file.read_bytes() for file in server)


def test_rounds_without_prototypes_pass(tmp_path: Path) -> None:
    world = hidden_world(tmp_path / "fed", privacy={"secret": True, "first": 2, "every": 5})
    world.run()
    assert world.uploads(2) and set(world.uploads(2)["a"]) == {"prototype"}
    assert all(not arrays for arrays in world.uploads(1).values())
    assert all(not arrays for arrays in world.uploads(3).values())


def test_a_site_with_another_secret_does_not_take_part(tmp_path: Path) -> None:
    world = hidden_world(tmp_path / "fed")
    secret_at(world, "south").write_bytes(b"x" * 32)
    world.run()
    assert set(world.uploads(1)) == {"a", "d", "c", "f"}


def test_a_site_without_the_secret_refuses_the_run_in_words(tmp_path: Path) -> None:
    world = hidden_world(tmp_path / "fed")
    for site in SITES:
        secret_at(world, site).unlink()
    with pytest.raises(FuelsError, match=f"this run needs {SHARED}"):
        world.run()


@pytest.mark.parametrize(
    ("consent", "met", "missed", "message"),
    [
        ({"hidden": True}, HIDDEN, {}, "needs privacy.secret; this site demands consent.hidden"),
        (
            {"least_noise": 0.5},
            {"options": {"noise": "gaussian", "noise_scale": 0.5}},
            {"options": {"noise": "gaussian", "noise_scale": 0.4}},
            r"has noise of 0.4 .* consent.least_noise = 0.5",
        ),
        ({"least_noise": 0.5}, {"options": {"noise": "laplace"}}, {}, "has noise of 0 "),
        (
            {"most_prototypes": 2},
            {"privacy": {"first": 2, "every": 2}},
            {"privacy": {"every": 2}},
            "sends 3 prototypes of each client in 5 rounds.*most_prototypes = 2",
        ),
    ],
)
def test_a_site_refuses_a_run_that_protects_less_than_it_demands(
    consent: dict[str, Any], met: dict[str, Any], missed: dict[str, Any], message: str
) -> None:
    def ask(changes: dict[str, Any], method: str = "fuels") -> None:
        chosen = merge(settings(method, rounds=5), changes, "test")
        with build(chosen, Engine(threads=1), make_panel(clients=3)) as job:
            check_protection(job, Consent(**consent), 1)

    ask(met)
    ask({}, "fedavg")  # sends no prototypes; consent.methods decides about models
    with pytest.raises(RefusalError, match=message):
        ask(missed)


def test_rounds_beyond_the_announced_ones_count(tmp_path: Path) -> None:
    with build(settings(rounds=2), Engine(threads=1), make_panel(clients=3)) as job:
        assert prototypes_sent(job.method, 7) == 7
        check_protection(job, Consent(most_prototypes=2), 2)
        with pytest.raises(RefusalError, match="in 3 rounds"):
            check_protection(job, Consent(most_prototypes=2), 3)


def test_a_demand_in_site_toml_stops_that_site_only(tmp_path: Path) -> None:
    world = World(tmp_path / "fed", settings(rounds=1))
    file = world.root / "sites" / "south" / "site.toml"
    file.write_text(file.read_text().replace("hidden = false", "hidden = true"))
    world.run()
    assert set(world.uploads(1)) == {"a", "d", "c", "f"}


def test_a_new_secret_reaches_the_sites_that_are_here(tmp_path: Path) -> None:
    fuels(
        "federation",
        "init",
        "--name",
        "t",
        "--sites",
        "a,b",
        "--server",
        "127.0.0.1",
        "--out",
        tmp_path / "t",
    )
    root = tmp_path / "t"
    paths = [root / "authority" / SHARED, *(root / "sites" / site / SHARED for site in "ab")]
    before = {path.read_bytes() for path in paths}
    (root / "sites" / "b" / "site.toml").unlink()  # handed over
    result = fuels("federation", "renew-secret", root)
    after = [path.read_bytes() for path in paths]
    assert len(before) == 1 and after[0] == after[1] != after[2] and after[2] in before
    assert "copied to a" in result.output and not (root / "server" / SHARED).exists()
    assert (root / "authority" / f"{SHARED}.former").read_bytes() in before
    fuels("federation", "add-site", root, "c")
    assert (root / "sites" / "c" / SHARED).read_bytes() == after[0]
