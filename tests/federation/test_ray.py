"""Sites as Ray actors: the result of the local engine, also when an actor is killed."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fuels.config import Engine, Settings, merge
from fuels.errors import FuelsError
from fuels.federation.loop import Loop
from fuels.federation.ray import RayTransport, connect
from fuels.methods.fuels import Fuels
from fuels.runs.build import Job, build, load_dataset, make_method
from fuels.runs.run import run, warm_start
from fuels.runs.settings import resolve
from fuels.storage.run_folder import RunFolder
from helpers.panels import make_panel

LOCAL = Engine(threads=1)
RAY = Engine(threads=2, transport="ray", sites=2)
PANEL = make_panel(20)


def settings_of(method: str = "fuels", **training: Any) -> Settings:
    changes = {
        "method": method,
        "windows": {"split": "8/2/2"},
        "model": {"hidden": 8},
        "training": {"rounds": 3, **training},
    }
    return merge(Settings(), changes, "test")


def trained_locally(settings: Settings) -> Job:
    job = build(settings, LOCAL, PANEL)
    job.loop.run()
    return job


def assert_close(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    assert ours.keys() == theirs.keys()
    for name, array in theirs.items():
        np.testing.assert_allclose(ours[name], array, rtol=0, atol=1e-5, err_msg=name)


def assert_same(job: Job, local: Job) -> None:
    """All that is saved, and the forecasts of the kept models."""
    assert_close(job.loop.state()[0], local.loop.state()[0])
    forecasts = [
        j.site.forecast(j.site.models(j.loop.final_download()), "test") for j in (job, local)
    ]
    np.testing.assert_allclose(*forecasts, rtol=0, atol=1e-5)


class Scripted(Fuels):
    """FUELS that, where a file in `folder` says so, misbehaves once client c9 has been trained."""

    folder: Path

    def local(self, group: Any, download: Any) -> Any:
        result = super().local(group, download)
        if "c9" in group.ids and (self.folder / "wait").exists():
            (self.folder / "wait").unlink()
            draft = self.folder / "draft"
            draft.write_text(str(os.getpid()))
            draft.rename(self.folder / "waiting")
            time.sleep(60)
        if "c9" in group.ids and (self.folder / "refuse").exists():
            raise FuelsError("client c9 has nothing to learn from")
        if "c9" in group.ids and (self.folder / "die").exists():
            os._exit(1)
        return result


@pytest.fixture(scope="module")
def ray() -> Iterator[Any]:
    """One Ray for all tests: a transport uses the one it finds, and leaves it running."""
    if find_spec("ray") is None:
        pytest.skip("Ray is not installed: it comes with the extra ray")
    started, _ = connect(replace(RAY, threads=4))
    started.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    yield started
    started.shutdown()


@pytest.fixture(scope="module")
def actors(
    ray: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[RayTransport, dict[str, Any]]]:
    """Two sites of FUELS, which take seconds to start, and their first state."""
    settings = settings_of()
    dataset = load_dataset(settings, PANEL)
    method = make_method(resolve(settings), dataset)
    scripted = Scripted(method.options, method.facts)
    scripted.folder = tmp_path_factory.mktemp("script")
    transport = RayTransport(dataset, scripted, RAY, threads=1, keep="best")
    yield transport, transport.state()
    transport.close()


@pytest.fixture
def job(actors: tuple[RayTransport, dict[str, Any]], request: pytest.FixtureRequest) -> Job:
    """A job on the two sites as they were at first."""
    transport, first = actors
    transport.load(first)
    settings = settings_of(**getattr(request, "param", {}))
    loop = Loop(transport.method, transport, resolve(settings).training, settings.seed)
    return Job(settings, transport.dataset, transport.method, transport, loop)


def script(job: Job) -> Path:
    assert isinstance(job.method, Scripted)
    return job.method.folder


def test_ray_listens_to_this_machine_alone(ray: Any) -> None:
    assert [node["NodeManagerAddress"] for node in ray.nodes()] == ["127.0.0.1"]


# -- the same result -------------------------------------------------------------------------------


@pytest.mark.parametrize("job", [{}, {"selection": 0.4}], ids=["all", "some"], indirect=True)
def test_three_rounds_of_fuels_equal_those_of_the_local_engine(job: Job) -> None:
    """With some of the clients the groups of eight are torn apart."""
    local = trained_locally(job.settings)
    job.loop.run()
    assert_same(job, local)
    start = job.method.facts.network.initial(job.settings.seed)
    models = job.site.models(job.loop.final_download())
    assert np.abs(models["encoder"].numpy() - start["encoder"]).max() > 1e-3  # it has learned


def test_three_rounds_of_fedavg_equal_those_of_the_local_engine(ray: Any) -> None:
    settings = settings_of("fedavg")
    with build(settings, RAY, PANEL) as job:
        job.loop.run()
        assert_same(job, trained_locally(settings))


def test_a_state_goes_on_where_it_was_taken(job: Job) -> None:
    """Two rounds, another's third, then back: also from the local engine's state."""
    local = build(job.settings, LOCAL, PANEL)
    for _ in range(2):
        local.loop.step()
    job.loop.load(*local.loop.state())
    job.loop.run()
    local.loop.run()
    assert_same(job, local)


def test_a_warm_start_reaches_the_actors(job: Job, tmp_path: Path) -> None:
    before = RunFolder(tmp_path / "before")
    run(settings_of(rounds=1), LOCAL, before, panel=PANEL, plots=False)
    local = build(job.settings, LOCAL, PANEL)
    for each in (job, local):
        warm_start(each, before.path)
        each.loop.run()
    assert_same(job, local)


# -- deaths ----------------------------------------------------------------------------------------


def uninterrupted(job: Job) -> dict[str, Any]:
    """What all rounds leave on these actors; they go back to where they were."""
    first = job.sites.state()
    loop = Loop(job.method, job.sites, resolve(job.settings).training, job.settings.seed)
    loop.run()
    whole = {name: np.array(array) for name, array in loop.state()[0].items()}
    job.sites.load(first)
    return whole


def assert_same_bits(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    assert ours.keys() == theirs.keys()
    for name, array in theirs.items():
        assert np.asarray(ours[name]).tobytes() == np.asarray(array).tobytes(), name


def test_an_actor_killed_in_mid_round_is_started_again_and_the_round_completes(job: Job) -> None:
    whole, waiting = uninterrupted(job), script(job) / "waiting"

    def kill() -> None:
        while not waiting.exists():
            time.sleep(0.05)
        os.kill(int(waiting.read_text()), signal.SIGKILL)

    job.loop.step()
    (script(job) / "wait").touch()
    killer = threading.Thread(target=kill, daemon=True)
    killer.start()
    with pytest.warns(UserWarning, match="round 2: site 2 died; restarting it"):
        job.loop.run()
    killer.join(timeout=5)
    assert not killer.is_alive()
    assert_same_bits(job.loop.state()[0], whole)
    assert_same(job, trained_locally(job.settings))


def test_an_actor_killed_between_rounds_loses_nothing(ray: Any, job: Job) -> None:
    assert isinstance(job.sites, RayTransport)
    whole = uninterrupted(job)
    job.loop.step()
    before = job.sites.state()
    ray.kill(job.sites.sites[0].actor)
    assert_same_bits(job.sites.state(), before)
    with pytest.warns(UserWarning, match="round 2: site 1 died; restarting it"):
        job.loop.run()
    assert_same_bits(job.loop.state()[0], whole)
    assert_same(job, trained_locally(job.settings))


def test_a_state_that_died_with_its_machine_is_told(ray: Any, job: Job) -> None:
    """Whoever holds an object may be lost: here it is freed, which Ray tells in the same way."""
    assert isinstance(job.sites, RayTransport)
    site = job.sites.sites[0]
    kept, site.state = site.state, ray.put({"parts": np.zeros(1_000_000)})
    try:
        with pytest.warns(DeprecationWarning):
            ray._private.internal_api.free([site.state])
        with pytest.raises(FuelsError, match=r"the state of a site was lost .* --resume"):
            job.sites.state()
    finally:
        site.state = kept


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("refuse", r"^site 2: client c9 has nothing to learn from$"),
        ("die", r"^round 1: site 2 died 2 times \(The actor is dead because.*\); fix the cause"),
    ],
)
def test_what_cannot_be_mended_is_said_in_a_sentence(
    job: Job, what: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fuels.federation.ray.STARTS", 2)
    (script(job) / what).touch()
    with warnings.catch_warnings(), pytest.raises(FuelsError, match=message) as caught:
        warnings.simplefilter("ignore")
        job.loop.run()
    (script(job) / what).unlink()
    assert "\n" not in str(caught.value)


# -- run folders -----------------------------------------------------------------------------------


class Stop:
    """Ends a run after two rounds, as an interrupt would."""

    def __enter__(self) -> Stop:
        return self

    def __exit__(self, *_: object) -> None:
        return

    def on_round(self, done: Any) -> None:
        if done.number == 2:
            raise KeyboardInterrupt


def test_a_run_stopped_on_ray_is_resumed_there_or_locally(ray: Any, tmp_path: Path) -> None:
    settings = settings_of()
    straight = RunFolder(tmp_path / "straight")
    expected = run(settings, LOCAL, straight, panel=PANEL, plots=False)
    one = replace(RAY, sites=1, threads=1, kernels="plain")  # the quickest to start
    stopped = RunFolder(tmp_path / "stopped")
    with pytest.raises(KeyboardInterrupt):
        run(settings, one, stopped, panel=PANEL, watch=lambda *_: Stop(), plots=False)
    shutil.copytree(stopped.path, tmp_path / "copy")
    for folder, engine in ((stopped, one), (RunFolder(tmp_path / "copy"), LOCAL)):
        outcome = run(settings, engine, folder, panel=PANEL, resume=True, plots=False)
        assert_close(outcome.forecasts, expected.forecasts)
        assert [line["round"] for line in outcome.history] == [1, 2, 3]


class Counted:
    """Ray, which counts the bytes of what reaches the driver."""

    def __init__(self, ray: Any) -> None:
        self.ray, self.bytes = ray, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.ray, name)

    def get(self, references: Any) -> Any:
        found = self.ray.get(references)
        self.bytes += sum(array.nbytes for array in arrays_in(found))
        return found


def arrays_in(found: Any) -> Iterator[Any]:
    if isinstance(found, np.ndarray):
        yield found
    elif isinstance(found, dict | list | tuple):
        for each in found.values() if isinstance(found, dict) else found:
            yield from arrays_in(each)
    elif hasattr(found, "__dataclass_fields__"):
        yield from arrays_in(vars(found))


def saved(job: Job, folder: RunFolder, rounds: int) -> None:
    """Train so many rounds in all, with checkpoints."""
    folder.path.mkdir(exist_ok=True)
    job.loop.training = replace(job.loop.training, rounds=rounds)
    job.loop.run([folder], saver=folder)


def test_checkpoints_are_written_by_the_actors(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver gets uploads and checksums; what is on disk is the state as it would fetch it."""
    assert isinstance(job.sites, RayTransport)
    counted = Counted(job.sites._ray)
    monkeypatch.setattr(job.sites, "_ray", counted)
    folder, sizes = RunFolder(tmp_path / "run"), []
    for number in (1, 2):
        counted.bytes = 0
        saved(job, folder, number)
        sizes.append(counted.bytes)
    prototypes = 20 * 24 * 16 * 4
    assert all(prototypes < size < 1.1 * prototypes for size in sizes)
    files = sorted(file.name for file in (folder.path / "shares").iterdir())
    assert files == ["2-1.safetensors", "2-2.safetensors"]
    restored = folder.restore()
    assert restored is not None
    expected, facts = job.loop.state()
    assert restored[0].keys() == expected.keys() and restored[1]["round"] == facts["round"] == 2
    for name, array in expected.items():
        np.testing.assert_array_equal(restored[0][name], array, err_msg=name)
    assert sum(array.nbytes for array in arrays_in(expected)) > 2 * sizes[0]
    # A driver that dies after the actors have written the next round has the last one.
    job.sites.write(folder.path / "shares", 3)
    assert folder.restore() is not None
    folder.finish({"rounds": 2})
    assert not (folder.path / "shares").exists()


def test_an_actor_killed_before_it_writes_is_started_again(
    ray: Any, job: Job, tmp_path: Path
) -> None:
    assert isinstance(job.sites, RayTransport)
    job.loop.step()
    before = job.sites.write(tmp_path / "shares", 1)
    contents = [file.read_bytes() for file in sorted((tmp_path / "shares").iterdir())]
    ray.kill(job.sites.sites[0].actor)
    with pytest.warns(UserWarning, match="saving round 1: site 1 died; restarting it"):
        assert job.sites.write(tmp_path / "shares", 1) == before
    assert [f.read_bytes() for f in sorted((tmp_path / "shares").iterdir())] == contents


def test_without_a_shared_disk_the_driver_fetches_the_states(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(job.sites, RayTransport)
    monkeypatch.setattr(Path, "touch", lambda *_: None)  # the actors do not find the file
    monkeypatch.setattr(job.sites, "_apart", False)
    folder = RunFolder(tmp_path / "run")
    saved(job, folder, 1)
    assert list((folder.path / "shares").iterdir()) == []
    restored = folder.restore()
    assert restored is not None
    assert_close(restored[0], job.loop.state()[0])


def test_a_damaged_or_missing_share_is_named(job: Job, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    saved(job, folder, 1)
    share = folder.path / "shares" / "1-2.safetensors"
    share.write_bytes(share.read_bytes()[:-4] + b"oops")
    with pytest.raises(FuelsError, match=r"1-2.safetensors: damaged.*; restore it from a backup"):
        folder.restore()
    share.unlink()
    with pytest.raises(FuelsError, match=r"1-2.safetensors: no such file; restore it"):
        folder.restore()
