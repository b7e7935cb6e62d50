"""Sums and masked uploads of three real sites, of which one is killed and started again."""

from __future__ import annotations

import json
from pathlib import Path

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


def answered(running: Cluster, site: str, name: str) -> bool:
    """Whether a site has written down that it answers a sum."""
    file = running.root / "sites" / site / "state" / "audit.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return any(line["event"] == "sum" and line["name"] == name for line in lines)


@pytest.mark.federation
def test_a_site_killed_during_a_sum_costs_nothing_and_reuses_no_mask(tmp_path: Path) -> None:
    rules = Rules(deadline=180.0, join=120.0, quorum=1.0)
    settings, root = chosen(), tmp_path / "fed"
    with cluster(root, SITES, rules, methods=("fuels", "solo", "fedavg")) as running:
        consent_to_all(root)
        for file in root.glob("sites/*/site.toml"):
            file.write_text(file.read_text().replace("min_clients = 10", "min_clients = 6"))
        certify(root, federation_record(root), dict.fromkeys(SITES, 2), {})
        number = running.submit(settings)
        running.wait(lambda: answered(running, "north", LIVE_MEAN), 200, "north adds nothing")
        running.kill_site("north")
        running.start_site("north")
        running.finish(number, 300)
        noised = running.submit(private())
        running.finish(noised, 300)
        masked = running.submit(masked_settings())
        rounds = running.finish(masked, 300)
        server = ServerFolder(root)
        assert status(server)["masked"] == {"rounds": 2}
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
    data = {"data": {"source": str(tmp_path / "fed.csv"), "ids": sorted("abcdef")}}
    one = merge(settings, data, "test")
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
    # The model of masked uploads is that of one machine, and none left a site without masks.
    assert [line["clients"] for line in rounds] == [6, 6]
    alone = merge(masked_settings(), {"data": data["data"], "privacy": {"masked": False}}, "test")
    with build(alone, Engine(threads=1)) as job:
        job.loop.run()
    for name, part in load_state(server.runs / masked / "server.safetensors")[0].items():
        np.testing.assert_allclose(part, job.loop.server.parts[name], atol=3e-7)
    for site in SITES:
        kept = sorted((running.site_run(site, masked) / "sent").glob("train-*.bin"))
        arrays = [set(decode(path.read_bytes(), LIMIT).arrays) for path in kept]
        assert arrays == [{"words", "loss/prediction", *FIGURES}] * 2


def sums_of(settings: Settings) -> np.ndarray:
    """The live mean's sums on one machine, [step, 2]."""
    dataset: Dataset = load_dataset(settings)
    observed = dict(zip(dataset.ids, history_of(dataset).observed, strict=True))
    found = live_mean.exchange(LocalSums(6), observed)
    assert found is not None
    return np.stack([found.total, found.count], axis=1)
