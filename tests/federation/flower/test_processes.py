"""A federation of real processes on loopback: the same results as on one machine, and failures.

One server and three sites serve all tests, one after the other; each run is a new one to them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuels.config import Engine, Settings, merge
from fuels.evaluation.scores import score
from fuels.federation.codec import decode
from fuels.federation.flower.commands import registered
from fuels.federation.flower.folders import Rules, SiteFolder, key_of
from fuels.federation.flower.messages import read_upload
from fuels.federation.flower.provisioning import renew
from fuels.federation.flower.records import audit
from fuels.runs.build import build
from fuels.runs.settings import resolve
from fuels.storage.checkpoint import load_state
from helpers.cluster import Cluster, cluster, fuels, kill
from helpers.flower_world import SITES, World, few_days, settings, write_panel

pytest.importorskip("flwr")
pytestmark = pytest.mark.federation

RULES = Rules(deadline=120.0, join=120.0, quorum=0.3, evaluate_every=5)
LONG = 900.0  # seconds any run may take on a busy machine
BATCHES = 5  # periods of 8 training days that have samples


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    root = tmp_path_factory.mktemp("processes") / "fed"
    with cluster(root, SITES, RULES, ("fuels", "fedavg")) as started:
        yield started


@pytest.fixture(autouse=True)
def usual(running: Cluster) -> None:
    """Every test begins without planned faults and with the same rules."""
    running.plan({})
    running.set_rules(RULES)


def copies(running: Cluster, site: str, run: str) -> list[int]:
    """The rounds for which a site has sent an upload."""
    files = (running.site_run(site, run) / "sent").glob("train-*.bin")
    return sorted(int(file.stem.split("-")[1]) for file in files)


def steps(running: Cluster, site: str, run: str) -> set[int]:
    """How many batches each client of a site was trained on in all."""
    arrays, _ = load_state(running.site_run(site, run) / "state.safetensors")
    return set(arrays["site/slots.encoder.step"].tolist())


def rounds_begun(running: Cluster, site: str, run: str) -> list[int]:
    """The rounds that a site has begun to train, as often as it did."""
    text = (running.root / "sites" / site / "state" / "site.log").read_text()
    return [int(number) for number in re.findall(rf"run {run}, round (\d+): \d+ clients", text)]


def local(running: Cluster, run_settings: Settings) -> tuple[Any, dict[str, Any]]:
    """The same training on one machine, and what its clients sent in round 1."""
    source = {"data": {"source": str(running.root.parent / f"{running.root.name}.csv")}}
    job = build(merge(run_settings, source, "test"), Engine(threads=1))
    sent: dict[str, Any] = {}
    original = job.site.train

    def spy(number: int, clients: Any, download: Any) -> Any:
        upload, report = original(number, clients, download)
        if number == 1:
            for row, client in enumerate(upload.clients):
                sent[client] = {name: array[row] for name, array in upload.arrays.items()}
        return upload, report

    job.site.train = spy  # type: ignore[method-assign]
    job.loop.run()
    return job, sent


def heard(history: list[dict[str, Any]], site: str) -> list[int]:
    """The rounds in which an upload of a site was used."""
    return [
        line["round"]
        for line in history
        if not any(text.startswith(f"{site}: ") for text in line["failures"])
    ]


@pytest.mark.parametrize("method", ["fuels", "fedavg"])
def test_local_engine_and_flower_agree(running: Cluster, method: str) -> None:
    """In what the clients send, and in the errors of the models that the sites are left with."""
    running.set_rules(replace(RULES, evaluate_every=1))
    chosen = settings(method, rounds=5)
    run = running.submit(chosen)
    history = running.finish(run, LONG)
    job, sent = local(running, chosen)
    for site in SITES:
        content = (running.site_run(site, run) / "sent" / "train-00001.bin").read_bytes()
        upload = read_upload(decode(content, 2**26))
        for row, client in enumerate(upload.clients):
            for name, array in upload.arrays.items():
                np.testing.assert_allclose(array[row], sent[client][name], atol=1e-5)
    assert history[-1]["val_mse"] == pytest.approx(float(job.loop.val_mse.mean()), rel=0.01)
    assert all(line["failures"] == [] for line in history)
    models = job.site.models(job.loop.final_download())
    test = score(job.dataset, "test", job.site.forecast(models, "test"))
    for site, ids in SITES.items():
        summary = json.loads((running.site_run(site, run) / "summary.json").read_text())
        rows = [job.dataset.ids.index(client) for client in ids]
        kept = summary["scores"][job.method.title]["mse"]
        print(f"{method} {site}: test MSE {kept:.6f}, one machine {test.mse[rows].mean():.6f}")
        assert kept == pytest.approx(test.mse[rows].mean(), rel=0.01)


def test_sites_killed_in_mid_round(running: Cluster) -> None:
    """The round closes at its deadline, sites come back with their models, nothing is doubled.

    In round 2 north is killed while it trains, and south when it has trained and before the server
    hears of it. Flower lets them in again when two heartbeats are missing, after half a minute.
    """
    deadline, rounds, epochs = 25.0, 12, 300  # so many that a round trains for seconds
    running.set_rules(replace(RULES, deadline=deadline))
    slow = {3: 15, 4: 6, 5: 6, 6: 6, 7: 6}  # the run lasts until the others are back
    held = {f"train {number} east": f"hold {seconds}" for number, seconds in slow.items()}
    running.plan({"train 2 south": "hold 3600", **held})
    run = running.submit(settings(rounds=rounds, local_epochs=epochs))
    running.wait(lambda: running.trains("north", run, 2), LONG, "round 2 did not reach north")
    running.kill_site("north")
    assert running.trained("north", run) == 1 and copies(running, "north", run) == [1]
    running.wait(lambda: running.happened("train 2 south"), LONG, "round 2 did not reach south")
    running.kill_site("south")
    assert running.trained("south", run) == 2
    for site in ("north", "south"):
        running.start_site(site)
    history = running.finish(run, LONG)
    assert running.timings(run)[1]["train"] <= deadline + 2.0
    assert [history[i]["clients"] for i in (0, 1, -1)] == [6, 2, 6]
    lost = "no reply within 25 s", "Error: Node Unavailable"  # or Flower has noticed before
    parts = [failure.partition(": ") for failure in history[1]["failures"]]
    assert sorted(site for site, _, _ in parts) == ["north", "south"]
    assert all(reason.startswith(lost) for _, _, reason in parts)
    for site in SITES:  # a round trained twice, or half, would show in the optimiser's steps
        trained = copies(running, site, run)
        assert set(heard(history, site)) <= set(trained) and (2 in trained) == (site != "north")
        assert steps(running, site, run) == {len(trained) * epochs * BATCHES}
        assert (running.site_run(site, run) / "models.safetensors").exists()


@pytest.mark.parametrize("method", ["fuels", "fedavg"])
def test_the_server_killed_at_a_random_round_goes_on_by_itself(
    running: Cluster, tmp_path: Path, method: str
) -> None:
    """To the same bytes as a run that nobody interrupts: uploads, server, models, history.

    Also with a new certificate: the sites ask for nothing but the authority's signature.
    """
    chosen = settings(method, rounds=5)
    at = int(np.random.default_rng().integers(1, 4))
    run = running.submit(chosen)
    running.wait(lambda: len(running.history(run)) >= at, LONG, f"round {at} was not reached")
    server = running.processes.running["server"]
    kill(server.pid)
    server.wait()
    renew(running.root)
    running.processes.start("server", ["server", str(running.server.path)])
    history = running.finish(run, LONG)
    whole = World(tmp_path / "whole", chosen, **asdict(RULES))
    assert history == whole.run(run), f"killed after round {at}"
    assert [line["clients"] for line in history] == [6] * 5
    same(running.server.runs / run / "server.safetensors", whole.server.runs / run)
    for site in SITES:
        begun = rounds_begun(running, site, run)  # a repeated answer is not trained for
        assert set(begun) == {1, 2, 3, 4, 5} and len(begun) <= 6, f"{site}: {begun}"
        if method == "fuels":
            assert steps(running, site, run) == {5 * BATCHES}
        for name in ("models.safetensors", "state.safetensors"):
            same(running.site_run(site, run) / name, whole.root / "sites" / site / "runs" / run)
    for number in range(1, 6):
        sent = whole.uploads(number)
        for site in SITES:
            file = running.site_run(site, run) / "sent" / f"train-{number:05d}.bin"
            upload = read_upload(decode(file.read_bytes(), 2**26))
            for row, client in enumerate(upload.clients):
                for name, array in upload.arrays.items():
                    np.testing.assert_array_equal(array[row], sent[client][name])


def same(file: Path, folder: Path) -> None:
    """The numbers in a file are those in the file of this name in another folder, bit by bit."""
    here, there = (load_state(path)[0] for path in (file, folder / file.name))
    assert here.keys() == there.keys()
    for name, array in here.items():
        np.testing.assert_array_equal(array, there[name], err_msg=f"{file.name}: {name}")


def online(running: Cluster) -> set[str]:
    """The sites that are connected."""
    names = {key_of(key): name for name, key in running.server.config.sites.items()}
    nodes = registered(running.server).items()
    return {names[key] for key, node in nodes if key in names and node.status == "online"}


def joined(running: Cluster, run: str) -> set[str]:
    """The sites that have introduced themselves in a run."""
    entries = audit(running.server).entries()
    return {e["site"] for e in entries if e["event"] == "joined" and e.get("run") == run}


def test_a_site_absent_from_the_start_and_one_that_is_new(running: Cluster) -> None:
    """Training begins without east; it and a site that is added meanwhile come in later."""
    running.stop_site("east")
    running.set_rules(replace(RULES, join=20.0))
    running.plan({"train 2 north": "until connected", "train 4 north": "until joined"})
    run = running.submit(settings(rounds=8))
    running.wait(lambda: len(running.history(run)) >= 1, LONG, "round 1 did not end")
    running.start_site("east")
    fuels("federation", "add-site", running.root, "west")
    folder = running.root / "sites" / "west"
    write_panel(folder / "west.csv", ["g"])
    text = (folder / "site.toml").read_text()
    text = few_days(text.replace('source = ""', 'source = "west.csv"'))
    (folder / "site.toml").write_text(text)
    running.start_site("west")
    running.wait(lambda: {"east", "west"} <= online(running), LONG, "they do not connect")
    (running.root / "connected").touch()
    running.wait(lambda: {"east", "west"} <= joined(running, run), LONG, "they do not join")
    (running.root / "joined").touch()
    history = running.finish(run, LONG)
    running.exclude("west")  # its owner sees why it is out
    why = "refuses this site: The key of site west was revoked. Ask the server's operator"
    seen = running.root / "west.log"
    running.wait(lambda: why in seen.read_text(), LONG, "west does not see why it is refused")
    running.stop_site("west")
    assert history[0]["clients"] == 4 and history[-1]["clients"] == 7
    assert copies(running, "east", run)[0] > 1
    assert (running.site_run("west", run) / "models.safetensors").exists()


def test_a_poisoning_site_is_contained_reported_and_excluded(running: Cluster) -> None:
    """East has a valid key, and sends ten times what it trained, turned round.

    The others' models are as good as in a run without it.
    """
    defence = {"admission": 5.0, "clip": 2.0, "refusals": 2}
    chosen = resolve(merge(settings("fedavg", rounds=5), {"defence": defence}, "test"))
    running.set_rules(replace(RULES, evaluate_every=1))
    running.plan({"train * east": "poison"})
    run = running.submit(chosen)
    history = running.finish(run, LONG)
    why = "all its clients were refused or left out in 2 rounds (defence.refusals)"
    assert [line.get("left_out", 0) for line in history] == [2, 2, 0, 0, 0]
    assert f"east: excluded from the run: {why}" in history[2]["failures"]
    assert [line["clients"] for line in history] == [6, 6, 4, 4, 4]
    assert copies(running, "east", run) == [1, 2]
    found = json.loads(fuels("federation", "status", running.server.path, "--json"))
    assert found["excluded"] == {"east": why} and found["audit"]["problem"] == ""

    honest = {site: ids for site, ids in SITES.items() if site != "east"}
    ids = sorted(client for own in honest.values() for client in own)
    job, _ = local(running, merge(chosen, {"data": {"ids": ids}}, "test"))
    models = job.site.models(job.loop.final_download())
    alone = score(job.dataset, "test", job.site.forecast(models, "test")).mse.mean()
    errors = [
        json.loads((running.site_run(site, run) / "summary.json").read_text())["scores"]
        for site in honest
    ]
    attacked = np.mean([scores[job.method.title]["mse"] for scores in errors])
    print(f"honest test MSE {attacked:.6f}, without the poisoning site {alone:.6f}")
    assert attacked == pytest.approx(alone, rel=0.05)

    # What the operators' other tools say about it.
    metrics = running.metrics("server")
    for line in ("fuels_sites_excluded 1", "fuels_round 5", "fuels_round_replies 2"):
        assert line in metrics.splitlines()
    assert 'fuels_site_up{part="SuperNode"} 1' in running.metrics("east").splitlines()
    entries = [json.loads(line) for line in running.server.audit.read_text().splitlines()]
    events = {(entry["event"], entry.get("site")) for entry in entries if entry.get("run") == run}
    assert {(event, "east") for event in ("joined", "sent", "received", "excluded")} <= events
    sent = running.site_run("east", run) / "sent" / "train-00002.bin"
    (told,) = [
        entry
        for entry in audit(SiteFolder(running.root / "sites" / "east")).entries()
        if (entry.get("run"), entry.get("kind"), entry.get("round")) == (run, "train", 2)
    ]
    assert told["sha256"] == hashlib.sha256(sent.read_bytes()).hexdigest()


@pytest.mark.nightly  # five minutes; test_transport has the same series in memory
def test_thirty_percent_of_the_sites_fail_at_random_for_twenty_rounds(running: Cluster) -> None:
    rng, deadline = np.random.default_rng(11), 15.0
    rounds = range(1, 21)
    failing = [f"train {n} {site}" for n in rounds for site in SITES if rng.random() < 0.3]
    assert len(failing) > 12
    # An error in words; the process that trains, killed with -9; an answer that comes too late.
    often = ["raise", "kill"]
    kinds = [*often, *often, "raise", "kill", f"hold {deadline + 5}", *often, *often]
    faults = {key: kinds[i % len(kinds)] for i, key in enumerate(failing)}
    running.plan(faults)
    running.set_rules(replace(RULES, deadline=deadline))
    run = running.submit(settings(rounds=20))
    history = running.finish(run, LONG)
    assert [line["round"] for line in history] == list(rounds)
    # The others have no process that could fail: some sites are silent, or train without a worker
    # until theirs is back.
    done = [key for key in faults if running.happened(key)]
    assert {faults[key] for key in done} == set(kinds) and len(done) >= len(faults) - 5
    unseen = set()
    for key in done:
        _, number, site = key.split()
        failures = history[int(number) - 1]["failures"]
        if not any(text.startswith(f"{site}: ") for text in failures):
            unseen.add(key)
    # Rounds are shorter than a restart: a site whose worker is killed before it is ready trains
    # without it, and nobody notices.
    assert len(unseen) <= 4 and {faults[key] for key in unseen} <= {"kill"}, unseen
