"""Founding a federation, its config files, and the commands behind the commands."""

from __future__ import annotations

import asyncio
import stat
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_public_key,
)
from typer.testing import CliRunner

from fuels.cli.federation import federation_app, server_app, site_app
from fuels.config import Settings, merge
from fuels.errors import FuelsError
from fuels.federation.flower import steward
from fuels.federation.flower.commands import run_config, write_run_config
from fuels.federation.flower.door import LARGEST, PULL, Door, is_open
from fuels.federation.flower.found import found
from fuels.federation.flower.keys import make_site_key, public_line
from fuels.federation.flower.launch import new_run
from fuels.federation.flower.parties import Current, ServerFolder, SiteFolder
from fuels.federation.flower.serving import settings_of
from fuels.methods import complete

runner = CliRunner()


@pytest.fixture
def metro(tmp_path: Path) -> Path:
    found(tmp_path / "metro", "metro", ["north", "south"], "fed.example.org", 9092)
    return tmp_path / "metro"


def test_one_folder_per_party_and_private_keys_for_their_owner_only(metro: Path) -> None:
    keys = sorted(str(path.relative_to(metro)) for path in metro.rglob("*.key"))
    assert keys == [
        "authority/ca.key", "server/server.key", "sites/north/site.key", "sites/south/site.key",
    ]  # fmt: skip
    for path in metro.rglob("*.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    page = (metro / "README.md").read_text()
    assert "Never send" in page and "sites/south/" in page and "site.key" in page


def test_the_certificate_is_for_the_server_and_signed_by_the_authority(metro: Path) -> None:
    authority = x509.load_pem_x509_certificate((metro / "authority/ca.pem").read_bytes())
    server = x509.load_pem_x509_certificate((metro / "server/server.pem").read_bytes())
    server.verify_directly_issued_by(authority)
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "fed.example.org" in names.get_values_for_type(x509.DNSName)


def test_the_server_knows_the_sites_by_their_keys(metro: Path) -> None:
    config = ServerFolder(metro).config
    assert set(config.sites) == {"north", "south"}
    public = (metro / "sites/north/site.pub").read_text().strip()
    assert config.sites["north"] == public and config.sites["south"] != public
    assert (config.host, config.port, config.control_port) == ("0.0.0.0", 9092, 9093)
    site = SiteFolder(metro / "sites/north").config
    assert (site.name, site.server) == ("north", "fed.example.org:9092")
    assert site.consent.methods == ("fuels",) and not site.consent.raw_derived


def test_a_key_that_is_none_is_no_site() -> None:
    assert public_line(b"-----BEGIN PUBLIC KEY-----\nxx\n-----END PUBLIC KEY-----\n") == ""


def test_adding_a_site_keeps_the_rest(metro: Path) -> None:
    result = runner.invoke(federation_app, ["add-site", str(metro), "west"])
    assert result.exit_code == 0, result.output
    sites = ServerFolder(metro).config.sites
    assert set(sites) == {"north", "south", "west"}
    assert sites["west"] == (metro / "sites/west/site.pub").read_text().strip()


def test_renewing_the_certificate(metro: Path) -> None:
    before = (metro / "server/server.pem").read_bytes()
    assert runner.invoke(federation_app, ["renew", str(metro)]).exit_code == 0
    server = x509.load_pem_x509_certificate((metro / "server/server.pem").read_bytes())
    authority = x509.load_pem_x509_certificate((metro / "authority/ca.pem").read_bytes())
    server.verify_directly_issued_by(authority)
    assert (metro / "server/server.pem").read_bytes() != before
    assert stat.S_IMODE((metro / "server/server.key").stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"sites": ["north", "north"]}, "none twice"),
        ({"sites": ["../x"]}, "lower-case letters"),
        ({"sites": []}, "at least one"),
        ({"name": "Metro City"}, "lower-case letters"),
    ],
)
def test_names_that_cannot_be(tmp_path: Path, arguments: dict[str, Any], reason: str) -> None:
    values = {"name": "metro", "sites": ["north"], "server": "127.0.0.1", "port": 1, **arguments}
    with pytest.raises(FuelsError, match=reason):
        found(tmp_path / "new", **values)
    assert not (tmp_path / "new").exists()


def test_a_folder_is_never_replaced(metro: Path) -> None:
    with pytest.raises(FuelsError, match="exists"):
        found(metro, "metro", ["north"], "127.0.0.1", 1)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("quorum = 0.5", "quorum = 1.5", "quorum is a share"),
        ("quorum = 0.5", "qourum = 0.5", "did you mean quorum"),
        ("[sites]", "[sites]\n'a/b' = 'x'", "lower-case"),
        ("[sites]", "[sites", "not valid TOML"),
    ],
)
def test_bad_config_is_one_sentence(metro: Path, old: str, new: str, reason: str) -> None:
    file = metro / "server" / "server.toml"
    file.write_text(file.read_text().replace(old, new))
    with pytest.raises(FuelsError, match=reason):
        _ = ServerFolder(metro).config


def test_settings_survive_the_way_through_flower(tmp_path: Path) -> None:
    """As a file for `flwr run --run-config`, and flattened as Flower hands it to the apps."""
    changes = {"method": "fuels", "options": {"rho": 2.0}, "training": {"rounds": 7}}
    chosen = complete(merge(Settings(), changes, "test"))
    write_run_config(tmp_path / "run.toml", "name", chosen)
    written = tomllib.loads((tmp_path / "run.toml").read_text())
    flat = {
        (f"{key}.{inner}" if inner else key): value
        for key, section in written.items()
        for inner, value in (section.items() if isinstance(section, dict) else [("", section)])
    }
    assert settings_of(flat) == replace(chosen, data=Settings().data)
    app = tmp_path / "metro"
    found(app, "metro", ["north"], "127.0.0.1", 1)
    project = tomllib.loads((app / "server/app/pyproject.toml").read_text())
    assert set(project["tool"]["flwr"]["app"]["config"]) == set(run_config("", Settings()))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"data.source": "/etc/passwd"}, "named by each site"),
        ({"training.warm_start": "/etc"}, "one machine"),
        ({"options": "[1]"}, "JSON object"),
        ({"training.rounds": 0}, "at least 1"),
        ({"training.roundz": 1}, "did you mean"),
    ],
)
def test_a_run_config_that_cannot_be(config: dict[str, Any], reason: str) -> None:
    with pytest.raises(FuelsError, match=reason):
        settings_of(config)


def test_show_prints_flowers_commands_and_starts_nothing(metro: Path) -> None:
    pytest.importorskip("flwr")
    data = metro / "my.csv"
    data.write_text("x")
    server = runner.invoke(server_app, ["start", str(metro), "--show"])
    for flag in (
        "flower-superlink", "--host 127.0.0.1", "--database", "--enable-supernode-auth",
        "--disable-runtime-dependency-installation", "FLWR_TELEMETRY_ENABLED=0",
        "FLWR_DISABLE_UPDATE_CHECK=1", "supernode register",
    ):  # fmt: skip
        assert flag in server.output
    folder = str(metro / "sites/north")
    site = runner.invoke(site_app, ["start", folder, "--data", str(data), "--show"])
    assert "flower-supernode --superlink fed.example.org:9092" in site.output
    assert "--root-certificates" in site.output and str(data) in site.output
    for arguments in (["run"], ["status"], ["stop"]):
        shown = runner.invoke(federation_app, [*arguments, str(metro), "--show"])
        assert shown.exit_code == 0 and "flwr" in shown.output, shown.output
    assert not (metro / "server" / "runs").exists()


def test_one_run_at_a_time(metro: Path) -> None:
    server = ServerFolder(metro)
    run = new_run(server, Settings())
    assert Current(server).read()["state"] == "submitted"
    with pytest.raises(FuelsError, match=f"{run} is not finished"):
        new_run(server, Settings())


def test_a_site_without_data_says_so(metro: Path) -> None:
    folder = SiteFolder(metro / "sites/north")
    with pytest.raises(FuelsError, match="give --data"):
        folder.config_for("")


# -- the door --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "open_"),
    [
        ("/v1/fleet/pull-messages", True),
        ("/v1/control/start-run", False),
        ("/v1/runtime/acquire-task", False),
        ("/v1/fleet/../control/start-run", False),
        ("/v1/fleet/%2e%2e/control/start-run", False),
        ("/v1/fleet//v1/control/start-run", False),
        ("/v1/fleet/", False),
        ("/docs", False),
        ("/", False),
    ],
)
def test_only_what_sites_need_is_open(path: str, open_: bool) -> None:
    assert is_open(path) == open_


def test_the_door_refuses_without_asking_the_superlink() -> None:
    """The client behind the door is None: touching it would be an error."""

    def ask(method: str, path: str, chunks: int) -> int:
        sent: list[Any] = []

        async def receive() -> dict[str, Any]:
            ask.left -= 1  # type: ignore[attr-defined]
            return {"body": bytes(2**20), "more_body": ask.left > 0}  # type: ignore[attr-defined]

        async def send(event: Any) -> None:
            sent.append(event)

        ask.left = chunks  # type: ignore[attr-defined]
        scope = {"type": "http", "method": method, "raw_path": path.encode(), "headers": []}
        asyncio.run(Door(None)(scope, receive, send))  # type: ignore[arg-type]
        status: int = sent[0]["status"]
        return status

    assert ask("POST", "/v1/control/start-run", 1) == 403
    assert ask("GET", "/v1/fleet/pull-messages", 1) == 403
    assert ask("POST", "/v1/fleet/push-object", LARGEST // 2**20 + 1) == 413


class Link:
    """A SuperLink that has nothing for a site, then a message."""

    def __init__(self, empty: int) -> None:
        self.empty, self.asked = empty, 0

    async def post(self, path: str, content: bytes, headers: Any) -> httpx.Response:
        self.asked += 1
        return httpx.Response(200, content=b"" if self.asked <= self.empty else b"message")


def pull(link: Link, path: str = PULL, leaves: float = 60.0) -> bytes:
    """What a site gets at the door, which it leaves after some seconds."""
    sent: list[Any] = []
    events = iter([{"body": b"", "more_body": False}])

    async def receive() -> Any:
        for event in events:
            return event
        await asyncio.sleep(leaves)
        return {"type": "http.disconnect"}

    async def send(event: Any) -> None:
        sent.append(event)

    scope = {"type": "http", "method": "POST", "raw_path": path.encode(), "headers": []}
    asyncio.run(Door(link)(scope, receive, send))  # type: ignore[arg-type]
    body: bytes = sent[1]["body"]
    return body


def test_a_site_waits_at_the_door_for_its_message() -> None:
    assert pull(link := Link(empty=2)) == b"message" and link.asked == 3
    assert pull(link := Link(empty=1), "/v1/fleet/push-object") == b"" and link.asked == 1


def test_a_site_that_left_gets_no_message_that_would_be_lost() -> None:
    assert pull(link := Link(empty=1), leaves=0.05) == b"" and link.asked == 1


def test_a_site_does_not_wait_forever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fuels.federation.flower.door.PATIENCE", 0.5)
    assert pull(link := Link(empty=99)) == b"" and link.asked == 3


# -- sites that come and go while the server runs --------------------------------------------------


def test_edited_keys_are_registered_once_the_file_is_at_rest(
    metro: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, registered = ServerFolder(metro), []
    monkeypatch.setattr(steward, "register_keys", lambda f: registered.append(set(f.config.sites)))
    keys = steward.Keys(server)
    keys.look()
    keys.look()
    assert registered == [{"north", "south"}]
    runner.invoke(federation_app, ["add-site", str(metro), "west"])
    keys.look()
    assert len(registered) == 1  # it may still be written
    keys.look()
    assert registered[1:] == [{"north", "south", "west"}]
    server.config_file.write_text("half a li")
    keys.look()
    keys.look()
    keys.look()
    assert len(registered) == 2


def test_a_site_that_is_added_is_known_by_its_key(metro: Path) -> None:
    pytest.importorskip("flwr")
    from fuels.federation.flower.app_server import GridPost

    class Grid:
        keys: ClassVar[list[str]] = []

        def get_nodes(self) -> list[Any]:
            pem = Encoding.PEM, PublicFormat.SubjectPublicKeyInfo
            keys = [load_ssh_public_key(line.encode()).public_bytes(*pem) for line in self.keys]
            return [SimpleNamespace(node_id=i, public_key=key) for i, key in enumerate(keys)]

    grid = Grid()
    post = GridPost(grid, ServerFolder(metro))  # type: ignore[arg-type]
    grid.keys.append((metro / "sites/north/site.pub").read_text())
    assert post.connected() == {"north"}
    grid.keys.append(make_site_key(metro / "server"))  # registered by hand, in no file
    assert post.connected() == {"north"}
    runner.invoke(federation_app, ["add-site", str(metro), "west"])
    grid.keys.append((metro / "sites/west/site.pub").read_text())
    assert post.connected() == {"north", "west"} and post.nodes == {"north": 0, "west": 2}
