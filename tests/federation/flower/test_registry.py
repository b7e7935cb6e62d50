"""The keys at the SuperLink follow server.toml, whatever became of its database."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fuels.errors import FuelsError
from fuels.federation.flower import commands, status, supervisor
from fuels.federation.flower.commands import Node
from fuels.federation.flower.folders import ServerFolder, key_of, log
from fuels.federation.flower.pki import make_site_key
from fuels.federation.flower.provisioning import admit, provision
from fuels.federation.flower.status import states
from fuels.federation.flower.supervisor import register_keys

pytest.importorskip("flwr")


class SuperLink:
    """Behaves as Flower does: a key that was taken back is kept and never accepted again."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.made = 0
        self.deaf = False

    def registered(self, _: ServerFolder) -> dict[str, Node]:
        if self.deaf:
            raise FuelsError("the SuperLink does not answer")
        return dict(self.nodes)

    def call(self, command: list[str], _: Any) -> dict[str, Any]:
        if command[2] == "register":
            key = Path(command[3]).read_text().strip()
            if key in self.nodes:
                return {"success": False, "error-message": "Public key already in use."}
            self.made += 1
            self.nodes[key] = Node(str(self.made), "registered")
            return {"success": True, "node-id": self.made}
        (key,) = [key for key, node in self.nodes.items() if node.number == command[3]]
        self.nodes[key] = Node(command[3], "unregistered")
        return {"success": True}

    def accepted(self) -> set[str]:
        return {key for key, node in self.nodes.items() if node.status != "unregistered"}


@pytest.fixture
def link(monkeypatch: pytest.MonkeyPatch) -> SuperLink:
    link = SuperLink()
    for module in (supervisor, status):
        monkeypatch.setattr(module, "registered", link.registered)
    monkeypatch.setattr(commands, "call", link.call)
    return link


@pytest.fixture
def server(tmp_path: Path) -> ServerFolder:
    provision(tmp_path / "metro", "metro", ["north", "south"], "127.0.0.1", 9092)
    return ServerFolder(tmp_path / "metro")


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    log.propagate = True
    with caplog.at_level(logging.INFO, "fuels"):
        yield caplog


def keys(server: ServerFolder) -> set[str]:
    return {key_of(line) for line in server.config.sites.values()}


def test_what_is_in_the_file_is_accepted_and_nothing_else(
    server: ServerFolder, link: SuperLink, tmp_path: Path
) -> None:
    link.nodes["ecdsa stranger"] = Node("99", "online")
    assert register_keys(server) and link.accepted() == keys(server)
    admit(server, "north", make_site_key(tmp_path))
    assert register_keys(server) and link.accepted() == keys(server) and link.made == 3
    assert register_keys(server) and link.made == 3  # nothing is done twice


def test_a_database_that_was_lost_is_filled_again(server: ServerFolder, link: SuperLink) -> None:
    register_keys(server)
    link.nodes.clear()
    assert register_keys(server) and link.accepted() == keys(server) and link.made == 4


def test_a_key_that_was_taken_back_is_never_accepted_again_and_that_is_said(
    server: ServerFolder, link: SuperLink, tmp_path: Path, said: pytest.LogCaptureFixture
) -> None:
    text = server.config_file.read_text()
    register_keys(server)
    lines = text.splitlines(keepends=True)
    server.config_file.write_text("".join(x for x in lines if not x.startswith("north = ")))
    assert register_keys(server) and link.accepted() == keys(server)
    server.config_file.write_text(text)
    assert register_keys(server)  # all is done that can be: it is not tried again and again
    assert "site north cannot connect: its key was revoked" in said.text
    assert "fuels site renew-key" in said.text
    assert states(server)["south"] == "registered"
    assert "never accepts a revoked key again" in states(server)["north"]
    admit(server, "north", make_site_key(tmp_path))
    assert register_keys(server) and link.accepted() == keys(server)


def test_what_failed_is_tried_again_later_and_at_once_when_the_file_changes(
    server: ServerFolder, link: SuperLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [1000.0]
    monkeypatch.setattr(supervisor.time, "monotonic", lambda: now[0])
    link.deaf = True
    seen = supervisor.Keys(server)
    seen.look()
    link.deaf = False
    seen.look()
    assert link.accepted() == set()  # not yet
    now[0] += supervisor.AGAIN
    seen.look()
    assert link.accepted() == keys(server)
    link.deaf, text = True, server.config_file.read_text()
    server.config_file.write_text(text + "\n")
    for _ in range(3):
        seen.look()
    link.deaf = False
    server.config_file.write_text("\n".join(text.splitlines()[:-1]) + "\n")
    for _ in range(2):
        seen.look()
    assert link.accepted() == keys(server) and len(keys(server)) == 1


def test_an_editor_may_move_the_file_away_for_a_moment(
    server: ServerFolder, link: SuperLink
) -> None:
    seen, text = supervisor.Keys(server), server.config_file.read_text()
    seen.look()
    server.config_file.unlink()
    for _ in range(3):
        seen.look()
    server.config_file.write_text(text)
    seen.look()
    assert link.accepted() == keys(server) and link.made == 2


def test_a_superlink_that_does_not_answer_is_one_sentence(server: ServerFolder) -> None:
    with pytest.raises(FuelsError, match="the SuperLink does not answer"):
        supervisor.registered(server)
    assert states(server) == {"north": "unknown", "south": "unknown"}


def test_a_supervisor_that_cannot_go_on_says_why(
    server: ServerFolder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(supervisor, "end_with_parent", lambda: None)
    monkeypatch.setattr("sys.argv", ["supervisor", str(server.path)])
    server.config_file.write_text("half a li")
    with pytest.raises(SystemExit) as ended:
        supervisor.main()
    assert ended.value.code == 1
    assert "the supervisor cannot continue" in (server.state / "supervisor.log").read_text()
    assert "not valid TOML" in capsys.readouterr().err
