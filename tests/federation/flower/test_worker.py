"""The process at a site that answers for Flower's: the same answers, and what if it is gone."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import chdir
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Any

import pytest

from fuels.federation.codec import decode, encode
from fuels.federation.flower import commands, flower_app
from fuels.federation.flower.app import ask_worker
from fuels.federation.flower.folders import RefusalError, Rules, SiteFolder
from fuels.federation.flower.messages import request
from fuels.federation.flower.processes import RestartedProcess, stop
from fuels.methods.messages import Download
from helpers.flower_world import LIMIT, make_federation, settings


@pytest.fixture
def site(tmp_path: Path) -> SiteFolder:
    """In a folder whose name is longer than a socket's may be."""
    root = tmp_path / ("a-long-name-" * 10)
    make_federation(root, {"north": ["a", "d"]}, ["fuels"], Rules())
    folder = SiteFolder(root / "sites" / "north")
    folder.state.mkdir()
    return folder


@pytest.fixture
def worker(site: SiteFolder) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(commands.worker(site))
    end = time.monotonic() + 60
    while not (site.state / site.socket).exists() and time.monotonic() < end:
        time.sleep(0.05)
    yield process
    process.kill()
    process.wait()


def question(
    kind: str, name: str = "north", run: str = "run", number: int = 1
) -> tuple[bytes, dict[str, Any]]:
    asked = ("a", "d") if kind == "train" else ()
    content = encode(request(kind, run, number, name, asked, Download()))
    config = flower_app.run_config(run, settings())
    flat = {
        (f"{key}.{inner}" if inner else key): value
        for key, section in config.items()
        for inner, value in (section.items() if isinstance(section, dict) else [("", section)])
    }
    facts = {"run_config": flat, "data": "", "made": time.time(), "expires": time.time() + 60}
    return content, facts


def test_a_worker_answers_as_the_process_itself_would(
    site: SiteFolder, worker: subprocess.Popen[bytes]
) -> None:
    theirs = [
        ask_worker(site, *question("hello", run="one")),
        ask_worker(site, *question("train", run="one")),
    ]
    assert decode(theirs[0], LIMIT).facts["clients"] == ["a", "d"]
    with pytest.raises(RefusalError, match="for another site, 'south'"):
        ask_worker(site, *question("hello", "south"))
    with pytest.raises(RefusalError, match=r"message is refused: .* not in this format"):
        ask_worker(site, *(b"x" * 100, question("hello")[1]))
    (site.path / "own.csv").write_text("time,client,value\n2024-01-01,a,secret\n")
    content, facts = question("hello")
    elsewhere = content, facts | {"data": str(site.path / "own.csv")}
    with pytest.raises(RefusalError, match="see the log in the site's folder") as told:
        ask_worker(site, *elsewhere)
    assert "secret" not in str(told.value) and "own.csv" not in str(told.value)
    assert "secret" in (site.state / "site.log").read_text()
    assert (
        ask_worker(site, *question("train", run="one")) == theirs[1]
    )  # after a refusal, and from disk

    worker.kill()
    worker.wait()
    own = [
        ask_worker(site, *question("hello", run="two")),
        ask_worker(site, *question("train", run="two")),
    ]
    assert [c.replace(b"two", b"one") for c in own] == theirs


def test_a_worker_that_ends_in_mid_work_is_a_reason_at_once(site: SiteFolder) -> None:
    with chdir(site.state):
        listener = Listener(site.socket, "AF_UNIX")

    def take_and_die() -> None:
        with listener.accept() as line:
            line.recv_bytes()

    thread = threading.Thread(target=take_and_die)
    thread.start()
    with pytest.raises(RefusalError, match="ended before it could answer"):
        ask_worker(site, *question("train"))
    thread.join()
    with chdir(site.state):
        listener.close()


def test_what_a_site_keeps_running_is_started_again_until_it_is_stopped() -> None:
    begun: list[subprocess.Popen[bytes]] = []

    def begin() -> subprocess.Popen[bytes]:
        begun.append(subprocess.Popen(["sleep", "60"], start_new_session=True))
        return begun[-1]

    kept = RestartedProcess("sleeper", begin)
    kept.start()
    end = time.monotonic() + 30
    while len(begun) < 2 and time.monotonic() < end:
        if begun:
            begun[0].kill()
        time.sleep(0.05)
    stop([kept])
    assert len(begun) == 2 and all(process.poll() is not None for process in begun)
    assert not kept.is_alive()
