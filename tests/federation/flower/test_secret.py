"""A site's own secret: made by itself, for its owner only, in its noise and in no message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuels.config import Engine, merge
from fuels.errors import FuelsError
from fuels.federation.flower.folders import SiteFolder, log
from fuels.federation.flower.pki import SIZE, read_secret
from fuels.federation.flower.worker import Worker
from fuels.privacy.noise import add_noise
from fuels.runs.build import build
from helpers.flower_world import SITES, World, settings


def noisy(root: Path) -> World:
    options = {"options": {"noise": "gaussian", "noise_scale": 0.5}}
    return World(root, merge(settings(rounds=2), options, "test"))


def secret_of(world: World, site: str) -> Path:
    return world.root / "sites" / site / "state" / "noise.secret"


def test_made_once_and_for_its_owner_only(tmp_path: Path) -> None:
    path = tmp_path / "state" / "noise.secret"
    first = read_secret(path)
    assert len(first) == SIZE and read_secret(path) == first
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_secret(tmp_path / "other") != first
    assert [file.name for file in path.parent.iterdir()] == ["noise.secret"]
    path.write_bytes(first[:-1])
    with pytest.raises(FuelsError, match="not 32 bytes"):
        read_secret(path)


def test_one_that_others_can_read_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "noise.secret"
    first = read_secret(path)
    path.chmod(0o660)
    monkeypatch.setattr(log, "propagate", True)
    assert read_secret(path) == first and path.stat().st_mode & 0o777 == 0o600
    assert "others could read it; now only its owner can" in caplog.text
    path.chmod(0o660)

    def of_another(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(Path, "chmod", of_another)
    with pytest.raises(FuelsError, match="others can read it; delete it"):
        read_secret(path)


def test_without_noise_there_is_none_and_none_is_asked_for(tmp_path: Path) -> None:
    world = World(tmp_path / "fed", settings(rounds=1))
    damaged = secret_of(world, "north")  # one that cannot be used does not silence the site
    damaged.parent.mkdir(parents=True, exist_ok=True)
    damaged.write_bytes(b"short")
    world.run()
    assert sorted(world.uploads(1)) == sorted(c for clients in SITES.values() for c in clients)
    assert not secret_of(world, "south").exists()


def test_the_server_cannot_draw_a_sites_noise_again(tmp_path: Path) -> None:
    """It knows the seed, the names and the round; on one machine that is all it takes."""
    world = noisy(tmp_path / "fed")
    world.run()
    source = {"data": {"source": str(world.root / "panel.csv")}}
    plain = merge(world.settings, {**source, "options": {"noise": "none"}}, "test")
    with build(plain, Engine(threads=1)) as job:
        job.loop.step()
        known = dict(zip(job.loop.clients, job.loop.server.state()["prototypes"], strict=True))
    noise: list[Any] = []
    for client, sent in world.uploads(1).items():
        value = sent["prototype"]
        drawn = add_noise(
            np.zeros_like(value)[None], (client,), "gaussian", 0.5, seed=0, round_number=1
        )[0]
        assert np.abs(value - drawn - known[client]).mean() > 0.3
        noise.append((value - known[client]).ravel())
    assert np.std(noise) == pytest.approx(0.5, rel=0.1)
    assert np.abs(np.corrcoef(noise) - np.eye(len(noise))).max() < 0.3


def test_no_message_carries_it_and_every_site_has_its_own(tmp_path: Path) -> None:
    world = noisy(tmp_path / "fed")
    world.run()
    found = [secret_of(world, site).read_bytes() for site in SITES]
    assert len(set(found)) == len(SITES)
    for _, _, _, content in (*world.network.got, *world.network.sent):
        for secret in found:
            assert secret not in content and secret.hex().encode() not in content
    kept = [file for file in (world.root / "server").rglob("*") if file.is_file()]
    assert kept and not any(secret in file.read_bytes() for file in kept for secret in found)


def test_a_site_that_trains_a_round_again_sends_the_same_noise(tmp_path: Path) -> None:
    """Killed before it had written round 2, it begins again from its state after round 1."""
    world = noisy(tmp_path / "fed")
    state = world.root / "sites" / "north" / "runs" / "run" / "state.safetensors"
    before: list[bytes] = []
    original = world.network.send

    def send(contents: Any, kind: str, number: int, ttl: float) -> list[str]:
        if (kind, number) == ("train", 2):
            before.append(state.read_bytes())
        return original(contents, kind, number, ttl)

    world.network.send = send  # type: ignore[method-assign]
    world.run()
    (request,) = [c for s, k, n, c in world.network.sent if (s, k, n) == ("north", "train", 2)]
    (answer,) = [c for s, k, n, c in world.network.got if (s, k, n) == ("north", "train", 2)]
    worker = Worker(SiteFolder(world.root / "sites" / "north"), world.settings)
    state.write_bytes(before[0])
    assert worker.answer(request, made=1e9) == answer
    state.write_bytes(before[0])
    secret_of(world, "north").unlink()  # with another secret it is another answer
    assert worker.answer(request, made=1e9) != answer
