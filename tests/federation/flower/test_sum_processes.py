"""Sums and masked uploads of three real sites, of which one is killed and started again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuels.config import Engine, Settings, merge
from fuels.data.windows import Dataset
from fuels.experts.history import history_of
from fuels.experts.run_sums import LIVE_MEAN, STATISTICS
from fuels.federation.codec import decode
from fuels.federation.flower.demo import consent_to_all
from fuels.federation.flower.folders import Rules, ServerFolder
from fuels.federation.flower.messages import FIGURES
from fuels.federation.flower.provisioning import federation_record
from fuels.federation.flower.status import status
from fuels.federation.flower.sum_keys import certify
from fuels.federation.flower.sum_server import FILE
from fuels.privacy.ledger import Ledger
from fuels.runs.build import build, load_dataset
from fuels.runs.run import run
from fuels.sharing import live_mean
from fuels.sharing.protection import LEDGER
from fuels.sharing.sums import LocalSums
from fuels.storage.checkpoint import load_state
from fuels.storage.run_folder import RunFolder
from helpers.cluster import Cluster, cluster
from helpers.flower_world import LIMIT
from helpers.masked import chosen as masked_settings
from helpers.sums import chosen, forecasts, private

pytest.importorskip("flwr")
SITES = {"north": ["a", "d"], "south": ["b", "e"], "east": ["c", "f"]}


pytestmark = pytest.mark.federation


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three sites that consent to sums, and a roster of them."""
    root = tmp_path_factory.mktemp("sums") / "fed"
    rules = Rules(deadline=180.0, join=120.0, quorum=1.0)
    with cluster(root, SITES, rules, methods=("fuels", "solo", "fedavg")) as running:
        consent_to_all(root)
        for file in root.glob("sites/*/site.toml"):
            file.write_text(file.read_text().replace("min_clients = 10", "min_clients = 6"))
        certify(root, federation_record(root), dict.fromkeys(SITES, 2), {})
        yield running


def on_one_machine(running: Cluster) -> dict[str, Any]:
    """The data of all sites, as settings."""
    return {"data": {"source": str(running.root.parent / "fed.csv"), "ids": sorted("abcdef")}}


def answered(running: Cluster, site: str, name: str) -> bool:
    """Whether a site has written down that it answers a sum."""
    file = running.root / "sites" / site / "state" / "audit.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return any(line["event"] == "sum" and line["name"] == name for line in lines)


def test_a_site_killed_during_a_sum_costs_nothing_and_reuses_no_mask(
    running: Cluster, tmp_path: Path
) -> None:
    settings, root = chosen(), running.root
    number = running.submit(settings)
    running.wait(lambda: answered(running, "north", LIVE_MEAN), 200, "north adds nothing")
    running.kill_site("north")
    running.start_site("north")
    running.finish(number, 300)
    noised = running.submit(private())
    running.finish(noised, 300)
    server = ServerFolder(root)
    facts = load_state(server.runs / noised / FILE)[1]
    assert [one["name"] for one in facts["found"]] == ["mean day", "live mean", "live mean"]
    for site in SITES:
        spent = Ledger.opened(root / "sites" / site / "state" / LEDGER)
        assert len(spent.entries) == 3 and 0 < spent.epsilon < 4
        stated = json.loads((running.site_run(site, noised) / "summary.json").read_text())
        assert stated["privacy"]["epsilon_spent"] == pytest.approx(spent.epsilon, abs=1e-5)
    arrays, facts = load_state(server.runs / number / FILE)
    assert facts["sets"] == {LIVE_MEAN: sorted(SITES), STATISTICS: sorted(SITES)}
    assert not facts["notes"]
    # The sums and the forecasts are those of one machine.
    one = merge(settings, on_one_machine(running), "test")
    np.testing.assert_array_equal(arrays["live"], sums_of(one))
    folder = RunFolder(tmp_path / "one")
    run(one, Engine(threads=1), folder, plots=False)
    here = forecasts(folder.path)
    for site, ids in SITES.items():
        there = forecasts(running.site_run(site, number))
        own = here.filter(here["client"].is_in(ids))
        for column in there.columns[3:]:
            np.testing.assert_allclose(there[column], own[column], atol=1e-5, err_msg=site)
    # Each site sent the same bytes for a sum however often it was asked.
    for site in SITES:
        kept = sorted((running.site_run(site, number) / "sent").glob("sum-*.bin"))
        words = [decode(path.read_bytes(), LIMIT).arrays.get("words") for path in kept]
        sizes = [len(found) for found in words if found is not None]
        assert len(sizes) == len(set(sizes)) == 2


def test_a_site_killed_in_a_masked_round_is_waited_for_and_repeats_its_bytes(
    running: Cluster,
) -> None:
    """North has trained round 2 and recorded its reply, and is killed before it is sent."""
    running.plan({"train 2 north": "hold 300"})
    number = running.submit(masked_settings(rounds=3))
    held = running.root / "sites/north/state/audit.jsonl"
    running.wait(lambda: replied(held, number, 2), 120, "north does not train")
    running.kill_site("north")
    Path(running.root / "train-2-north.done").touch()  # the fault has happened
    running.start_site("north")
    rounds = running.finish(number, 200)
    assert [line["clients"] for line in rounds] == [6, 6, 6]
    assert status(running.server)["masked"] == {"rounds": 3}
    # Each total is that of the plain uploads: the models are those of one machine.
    alone = merge(masked_settings(rounds=3), on_one_machine(running), "test")
    alone = merge(alone, {"privacy": {"masked": False}}, "test")
    with build(alone, Engine(threads=1)) as job:
        job.loop.run()
    stored = load_state(running.server.runs / number / "server.safetensors")[0]
    for name, part in stored.items():
        np.testing.assert_allclose(part, job.loop.server.parts[name], atol=3e-7)
    # Every reply was masked. North answered round 2 twice, with the same bytes.
    book = [json.loads(line) for line in held.read_text().splitlines()]
    sent = [e["sha256"] for e in book if of_round(e, number, 2) and e["event"] == "sent"]
    assert len(sent) >= 2 and len(set(sent)) == 1
    for site in SITES:
        kept = sorted((running.site_run(site, number) / "sent").glob("train-*.bin"))
        arrays = [decode(path.read_bytes(), LIMIT).arrays for path in kept]
        assert [set(found) for found in arrays] == [{"words", "loss/prediction", *FIGURES}] * 3
        words = np.concatenate([found["words"] for found in arrays])
        assert len(np.unique(words)) == len(words)  # no mask serves two rounds


def of_round(entry: dict[str, Any], run: str, number: int) -> bool:
    return (entry.get("run"), entry.get("kind"), entry.get("round")) == (run, "train", number)


def replied(book: Path, run: str, number: int) -> bool:
    """Whether a site has recorded that a reply to a round leaves."""
    lines = [json.loads(line) for line in book.read_text().splitlines()]
    return any(of_round(entry, run, number) and entry["event"] == "sent" for entry in lines)


def sums_of(settings: Settings) -> np.ndarray:
    """The live mean's sums on one machine, [step, 2]."""
    dataset: Dataset = load_dataset(settings)
    observed = dict(zip(dataset.ids, history_of(dataset).observed, strict=True))
    found = live_mean.exchange(LocalSums(6), observed)
    assert found is not None
    return np.stack([found.total, found.count], axis=1)
