"""The worker keeps its last job while nothing that the job was built from changes."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fuels.errors import FuelsError
from fuels.federation.codec import encode
from fuels.federation.flower import worker
from fuels.federation.flower.folders import RefusalError, Rules, SiteFolder
from fuels.federation.flower.messages import request
from fuels.federation.flower.worker import JobCache, Worker
from fuels.methods.messages import Download
from fuels.runs.build import Job, build
from fuels.runs.settings import ResolvedSettings
from helpers.flower_world import make_federation, settings, write_panel

Ask = Callable[..., bytes]


@pytest.fixture
def built(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """Every job that the worker builds."""
    jobs: list[Job] = []

    def counted(*arguments: Any, **more: Any) -> Job:
        jobs.append(build(*arguments, **more))
        return jobs[-1]

    monkeypatch.setattr(worker, "build", counted)
    return jobs


def site_in(root: Path) -> SiteFolder:
    make_federation(root, {"north": ["a", "d"]}, ["fuels", "fedavg"], Rules())
    return SiteFolder(root / "sites" / "north")


def ask(
    site: SiteFolder,
    jobs: JobCache | None,
    kind: str,
    number: int,
    chosen: ResolvedSettings | None = None,
    run: str = "run",
) -> bytes:
    clients = ("a", "d") if kind == "train" else ()
    content = encode(request(kind, run, number, "north", clients, Download()))
    return Worker(site, chosen or settings(), jobs=jobs).answer(content, made=float(number))


REQUESTS = [("hello", 0), ("train", 1), ("train", 2), ("hello", 2), ("train", 3), ("finish", 3)]


def test_replies_and_results_are_the_same_bytes_with_and_without_the_cache(
    tmp_path: Path, built: list[Job]
) -> None:
    cached, plain = site_in(tmp_path / "cached"), site_in(tmp_path / "plain")
    jobs = JobCache()
    kept = [ask(cached, jobs, kind, number) for kind, number in REQUESTS]
    assert len(built) == 1
    assert kept == [ask(plain, None, kind, number) for kind, number in REQUESTS]
    assert len(built) == 1 + len(REQUESTS)
    for name in ("state.safetensors", "models.safetensors"):
        files = [site.runs / "run" / name for site in (cached, plain)]
        assert files[0].read_bytes() == files[1].read_bytes()


def test_another_run_with_the_same_settings_starts_from_untrained_models(
    tmp_path: Path, built: list[Job]
) -> None:
    site, jobs = site_in(tmp_path / "fed"), JobCache()
    first = ask(site, jobs, "train", 1, run="one")
    second = ask(site, jobs, "train", 1, run="two")
    assert second == first.replace(b'"one"', b'"two"') and len(built) == 2


def test_a_round_that_failed_leaves_nothing_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, other, jobs = site_in(tmp_path / "fed"), site_in(tmp_path / "other"), JobCache()

    def fail(*_: Any) -> Any:
        raise FuelsError("a planned fault")

    with monkeypatch.context() as patch:
        patch.setattr(worker, "check_upload", fail)  # the models are trained by then
        with pytest.raises(FuelsError, match="a planned fault"):
            ask(site, jobs, "train", 1)
    assert ask(site, jobs, "train", 1) == ask(other, None, "train", 1)


def test_new_values_in_mid_run_are_refused(tmp_path: Path) -> None:
    site, jobs = site_in(tmp_path / "fed"), JobCache()
    ask(site, jobs, "train", 1)
    write_panel(tmp_path / "fed" / "panel.csv", ["a", "d"], days=13)
    with pytest.raises(RefusalError, match="a data file must not change before its run ends"):
        ask(site, jobs, "train", 2)


def test_changed_data_settings_and_config_invalidate_the_job(
    tmp_path: Path, built: list[Job]
) -> None:
    site, jobs = site_in(tmp_path / "fed"), JobCache()
    data = tmp_path / "fed" / "panel.csv"

    def jobs_after(chosen: ResolvedSettings | None = None) -> int:
        ask(site, jobs, "hello", 0, chosen)
        return len(built)

    assert jobs_after() == 1 and jobs_after() == 1
    write_panel(data, ["a", "d"], days=13)
    assert jobs_after() == 2 and jobs_after() == 2
    stat = data.stat()
    os.utime(data, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))  # as large as before
    assert jobs_after() == 3
    assert jobs_after(replace(settings(), seed=5)) == 4
    assert jobs_after(settings("fedavg")) == 5
    text = site.config_file.read_text()
    site.config_file.write_text(text.replace('ids = ["a", "d"]', 'ids = ["a"]'))
    assert jobs_after(settings("fedavg")) == 6
