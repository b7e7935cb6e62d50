"""The runbook with real processes: keys renewed, folders and databases lost, servers restored.

One federation of three sites lives through all of it, in this order.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from fuels.federation.flower import commands, flower_app
from fuels.federation.flower.commands import registered
from fuels.federation.flower.demo import wait_for
from fuels.federation.flower.folders import Rules, key_of
from fuels.federation.flower.runs import Current
from fuels.storage.checkpoint import load_state
from fuels.version import __version__
from helpers.cluster import Cluster, all_online, cluster, fuels
from helpers.flower_world import SITES, settings

pytest.importorskip("flwr")
pytestmark = pytest.mark.operations

RULES = Rules(deadline=30.0, join=120.0, quorum=0.3, evaluate_every=5)
LONG = 600.0
BATCHES = 5  # periods of 8 training days that have samples


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    root = tmp_path_factory.mktemp("restore") / "fed"
    with cluster(root, SITES, RULES) as started:
        yield started


def stop_server(running: Cluster) -> None:
    process = running.processes.running.pop("server")
    process.terminate()
    assert process.wait(60) == 0


def start_server(running: Cluster) -> None:
    running.processes.start("server", ["server", str(running.server.path)])
    wait_for(running.server, running.processes)


def clients(running: Cluster, run: str) -> list[int]:
    return [line["clients"] for line in running.finish(run, LONG)]


def test_a_key_is_renewed_in_the_middle_of_a_run(running: Cluster) -> None:
    """The site keeps its models; the former key is worth nothing, now and later."""
    folder, server = running.root / "sites" / "north", running.server
    former = (folder / "site.pub").read_text().strip()
    before = server.config_file.read_text()
    epochs = 1000  # so many that the site is back long before the last round
    run = running.submit(settings(rounds=8, local_epochs=epochs))
    running.wait(lambda: len(running.history(run)) >= 2, LONG, "round 2 did not end")
    running.stop_site("north")
    trained = running.trained("north", run)
    fuels("site", "renew-key", folder)
    fuels("server", "admit", server.path, "north", folder / "site.pub")
    running.start_site("north")
    history = running.finish(run, LONG)
    assert trained >= 2 and running.trained("north", run) == 8
    assert [history[i]["clients"] for i in (0, -1)] == [6, 6]
    # Every round that it trained is in its models: the optimiser has counted their batches.
    sent = list((running.site_run("north", run) / "sent").glob("train-*.bin"))
    arrays, _ = load_state(running.site_run("north", run) / "state.safetensors")
    assert set(arrays["site/slots.encoder.step"].tolist()) == {len(sent) * epochs * BATCHES}
    assert registered(server)[key_of(former)].status == "unregistered"

    # The message to whoever puts it back says that it cannot be used, and what to do.
    now = server.config_file.read_text()
    server.config_file.write_text(before)
    running.wait(
        lambda: "its key was revoked" in (server.state / "supervisor.log").read_text(),
        60, "nothing was said of the former key",
    )  # fmt: skip
    assert "renew-key" in fuels("federation", "status", server.path)
    server.config_file.write_text(now)
    fuels("site", "renew-key", folder)  # for the key of now is worn out by that, too
    fuels("server", "admit", server.path, "north", folder / "site.pub")
    running.stop_site("north")
    running.start_site("north")
    all_online(running)


def test_flowers_database_is_lost_and_the_version_is_another(running: Cluster) -> None:
    """Sites are let in again without a word from anybody, and the app follows the version."""
    server = running.server
    stop_server(running)
    for file in server.state.glob("flower.db*"):
        file.unlink()
    project = server.app / "pyproject.toml"
    project.write_text(project.read_text().replace(f"=={__version__}", "==0.0.1"))
    start_server(running)
    all_online(running)
    assert f"=={__version__}" in project.read_text()
    assert clients(running, running.submit(settings(rounds=2))) == [6, 6]


def test_a_server_is_restored_without_its_runs(running: Cluster) -> None:
    """In the middle of one: it is over, and a new one can be started at once."""
    server = running.server
    lost = running.submit(settings(rounds=50))
    running.wait(lambda: len(running.history(lost)) >= 1, LONG, "round 1 did not end")
    stop_server(running)
    shutil.rmtree(server.runs)
    start_server(running)
    running.wait(lambda: running.state() == "failed", 60, "the lost run was not noticed")
    assert "is missing, so this run cannot continue" in fuels("federation", "status", server.path)
    assert lost == Current(server).read()["run"]
    assert clients(running, running.submit(settings(rounds=2))) == [6, 6]


def test_folders_are_lost_and_made_again_with_what_the_founder_keeps(running: Cluster) -> None:
    """A site's and the server's, without any backup, in the middle of a run."""
    root, server = running.root, running.server
    run = running.submit(settings(rounds=3))
    running.wait(lambda: len(running.history(run)) >= 1, LONG, "round 1 did not end")
    running.kill_site("east")
    config = (root / "sites" / "east" / "site.toml").read_text()
    shutil.rmtree(root / "sites" / "east")
    stop_server(running)
    shutil.rmtree(server.path)
    fuels("federation", "renew", root)  # with authority/ alone
    fuels("federation", "add-site", root, "east", "--again")
    for site in ("north", "south"):  # whose keys were renewed since are let in by them
        if server.config.sites[site] != (root / "sites" / site / "site.pub").read_text().strip():
            fuels("server", "admit", server.path, site, root / "sites" / site / "site.pub")
    (root / "sites" / "east" / "site.toml").write_text(config)
    start_server(running)
    running.start_site("east")
    all_online(running)
    assert clients(running, running.submit(settings(rounds=2))) == [6, 6]


def test_a_run_of_plain_flwr_run_is_seen_and_stopped(running: Cluster) -> None:
    server = running.server
    command = commands.start_run(server, flower_app.inline(settings(rounds=50)))
    answer = commands.call(command, server)
    assert answer.get("success"), answer
    number = str(answer["run-id"])
    run = f"flower-{number}"
    running.wait(lambda: len(running.history(run)) >= 1, LONG, "round 1 did not end")
    told = fuels("federation", "status", server.path)
    assert f"{run} (running)" in told and "\nother" not in told
    assert f"run {run} is stopped" in fuels("federation", "stop", server.path)
    assert running.state() == "stopped"
    fuels("federation", "run", server.path, "--resume", "--detach")
    running.wait(lambda: len(running.history(run)) >= 3, LONG, "it did not go on")
    fuels("federation", "stop", server.path)
