"""Founding a federation, its config files, and the commands behind the commands."""

from __future__ import annotations

import re
import stat
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_ssh_public_key,
)
from typer.testing import CliRunner

from fuels.cli.federation import federation_app
from fuels.cli.parties import server_app, site_app
from fuels.config import DEFENCE_OF_BEST, PRESETS, Defence, Settings, merge, with_preset
from fuels.errors import FuelsError
from fuels.federation.flower import supervisor
from fuels.federation.flower.flower_app import (
    federated,
    run_config,
    settings_of,
    write_run_config,
)
from fuels.federation.flower.folders import ServerFolder, SiteFolder
from fuels.federation.flower.pki import make_site_key, public_key_line
from fuels.federation.flower.provisioning import provision
from fuels.federation.flower.runs import Current, new_run
from fuels.runs.settings import resolve

runner = CliRunner()


@pytest.fixture
def metro(tmp_path: Path) -> Path:
    provision(tmp_path / "metro", "metro", ["north", "south"], "fed.example.org", 9092)
    return tmp_path / "metro"


def test_one_folder_per_party_and_private_keys_for_their_owner_only(metro: Path) -> None:
    keys = sorted(str(path.relative_to(metro)) for path in metro.rglob("*.key"))
    assert keys == [
        "authority/ca.key", "server/server.key",
        "sites/north/site.key", "sites/north/sums.key",
        "sites/south/site.key", "sites/south/sums.key",
    ]  # fmt: skip
    for path in metro.rglob("*.key"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for name in ("authority", "server", "server/state", "sites/north", "sites/south"):
        assert stat.S_IMODE((metro / name).stat().st_mode) == 0o700, name
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
    assert public_key_line(b"-----BEGIN PUBLIC KEY-----\nxx\n-----END PUBLIC KEY-----\n") == ""


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"sites": ["north", "north"]}, "all names must be different"),
        ({"sites": ["../x"]}, "lower-case letters"),
        ({"sites": []}, "at least one"),
        ({"name": "Metro City"}, "lower-case letters"),
        ({"server": ""}, "--server '' must be a host name or an IPv4 address"),
        ({"server": "münchen.example"}, "in ASCII"),
        ({"server": "fed.example.org:9092"}, "without a port"),
        ({"server": "-x.example"}, "must be a host name"),
        ({"server": "10.0.0.256"}, "must be a host name"),
        ({"server": "::1"}, "must be a host name"),
        ({"server": "x" * 64 + ".org"}, "must be a host name"),
        ({"listen": "all of them"}, "--listen 'all of them' must be"),
        ({"listen": "::"}, r"--listen '::' excludes IPv4; use 0\.0\.0\.0"),
        ({"port": 99999}, "--port 99999 must be between 1 and 65534"),
        ({"port": 65535}, "--port 65535 must be between"),
        ({"port": 0}, "--port 0 must be between"),
        ({"methods": ["nonsense"]}, "unknown method nonsense"),
        ({"methods": []}, "at least one method"),
    ],
)
def test_names_that_cannot_be(tmp_path: Path, arguments: dict[str, Any], reason: str) -> None:
    values = {"name": "metro", "sites": ["north"], "server": "127.0.0.1", "port": 1, **arguments}
    with pytest.raises(FuelsError, match=reason):
        provision(tmp_path / "new", **values)
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("server", ["fed.example.org", "localhost", "a-1", "10.0.0.7"])
def test_hosts_that_can_be(tmp_path: Path, server: str) -> None:
    provision(tmp_path / "new", "metro", ["north"], server, 9092)
    assert SiteFolder(tmp_path / "new/sites/north").config.server == f"{server}:9092"


def test_what_fails_half_way_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fuels.federation.flower.provisioning.write_app", full)
    with pytest.raises(FuelsError, match=r"cannot be created \(No space left"):
        provision(tmp_path / "deep" / "new", "metro", ["north"], "localhost", 9092)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_never_replaced(metro: Path) -> None:
    with pytest.raises(FuelsError, match="exists"):
        provision(metro, "metro", ["north"], "127.0.0.1", 1)


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ('host = "0.0.0.0"', 'host = "::"', "host '::' excludes IPv4"),
        ("\nport = 9092", "\nport = 99092", "port 99092 must be between 1 and 65535"),
        ("control_port = 9093", "control_port = 0", "control_port 0 must be between"),
        ("quorum = 0.5", "quorum = 1.5", "quorum must be more than 0"),
        ("quorum = 0.5", "qourum = 0.5", "did you mean quorum"),
        ("[sites]", "[sites]\n'a/b' = 'x'", "lower-case"),
        ("[sites]", "[sites", "not valid TOML"),
        ("[sites]", "[sites]\na = 'x y one'\nb = 'x y two'", "sites a and b have the same key"),
        ("deadline = 600.0", "deadline = 0", "deadline must be a number of seconds"),
        ("attempts = 10", "attempts = 0", "attempts must be at least 1"),
        ("evaluate_every = 1", "evaluate_every = 0", "evaluate_every must be at least 1"),
        ("staleness = 1", "staleness = -1", "staleness must not be negative"),
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
    chosen = resolve(merge(Settings(), changes, "test"))
    write_run_config(tmp_path / "run.toml", "name", chosen)
    written = tomllib.loads((tmp_path / "run.toml").read_text())
    flat = {
        (f"{key}.{inner}" if inner else key): value
        for key, section in written.items()
        for inner, value in (section.items() if isinstance(section, dict) else [("", section)])
    }
    assert settings_of(flat) == replace(chosen, data=Settings().data)
    app = tmp_path / "metro"
    provision(app, "metro", ["north"], "127.0.0.1", 1)
    project = tomllib.loads((app / "server/app/pyproject.toml").read_text())
    listed = project["tool"]["flwr"]["app"]["config"]
    # Flower refuses a run with a setting that the app does not list; private is for one machine.
    for preset in PRESETS.keys() - {"private"}:
        given = run_config("", federated(with_preset(Settings(), preset, "", owners=2), ""))
        assert given.keys() == listed.keys()
        for section, values in given.items():
            if isinstance(values, dict):
                assert values.keys() == listed[section].keys(), (preset, section)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ({"data.source": "/etc/passwd"}, "data cannot be set here"),
        ({"training.warm_start": "/etc"}, "the sites do not have"),
        ({"options": "[1]"}, "JSON object"),
        ({"training.rounds": 0}, "at least 1"),
        ({"training.roundz": 1}, "did you mean"),
        ({"preset": "bset"}, "did you mean best"),
        (run_config("", Settings(preset="best")), "federation run --preset best"),
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
        "FLWR_DISABLE_UPDATE_CHECK=1",
    ):  # fmt: skip
        assert flag in server.output
    folder = str(metro / "sites/north")
    site = runner.invoke(site_app, ["start", folder, "--data", str(data), "--show"])
    assert "flower.supernode --superlink fed.example.org:9092" in site.output
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


# -- sites that come and go while the server runs --------------------------------------------------


def test_edited_keys_are_registered_once_the_file_is_at_rest(
    metro: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, registered = ServerFolder(metro), []

    def register(folder: ServerFolder) -> bool:
        registered.append(set(folder.config.sites))
        return True

    monkeypatch.setattr(supervisor, "register_keys", register)
    keys = supervisor.Keys(server)
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


def test_a_site_that_is_added_is_known_by_its_key(
    metro: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("flwr")
    from fuels.federation.flower.app import GridNetwork

    monkeypatch.setattr("fuels.federation.flower.app.CONNECTED", 0.0)

    class Grid:
        keys: ClassVar[list[str]] = []

        def get_nodes(self) -> list[Any]:
            pem = Encoding.PEM, PublicFormat.SubjectPublicKeyInfo
            keys = [load_ssh_public_key(line.encode()).public_bytes(*pem) for line in self.keys]
            return [SimpleNamespace(node_id=i, public_key=key) for i, key in enumerate(keys)]

    grid = Grid()
    post = GridNetwork(grid, ServerFolder(metro))  # type: ignore[arg-type]
    grid.keys.append((metro / "sites/north/site.pub").read_text())
    assert post.connected() == {"north"}
    grid.keys.append(make_site_key(metro / "server"))  # registered by hand, in no file
    assert post.connected() == {"north"}
    runner.invoke(federation_app, ["add-site", str(metro), "west"])
    grid.keys.append((metro / "sites/west/site.pub").read_text())
    assert post.connected() == {"north", "west"} and post.nodes == {"north": 0, "west": 2}

    # One that is excluded is not asked any more, although it is still connected.
    file = metro / "server" / "server.toml"
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(line for line in lines if not line.startswith("north = ")))
    assert post.connected() == {"west"} and post.nodes == {"west": 2}
    file.write_text("half a li")
    assert post.connected() == {"west"}  # what was known last


# -- presets ---------------------------------------------------------------------------------------


def chosen(metro: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> Settings:
    """The settings that `fuels federation run` would hand to the server."""
    handed: list[Settings] = []

    def new_run(_: ServerFolder, settings: Settings) -> str:
        handed.append(settings)
        return "run"

    monkeypatch.setattr("fuels.federation.flower.runs.need_server", lambda _: None)
    monkeypatch.setattr("fuels.federation.flower.runs.new_run", new_run)
    monkeypatch.setattr("fuels.federation.flower.runs.start", lambda _: None)
    result = runner.invoke(federation_app, ["run", str(metro), "--detach", *arguments])
    if result.exception is not None:
        raise result.exception
    return handed[0]


def test_a_run_takes_the_papers_settings_or_those_of_a_preset(
    metro: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert chosen(metro, monkeypatch, "--preset", "paper") == resolve(Settings())
    best = chosen(metro, monkeypatch, "--set", "windows.doubt=0.1")
    assert best.preset == "best" and best.mixture.on and best.training.rounds == 40
    assert best.windows.doubt == 0.1
    # Its clients belong to several owners; on one machine, the preset has no defences.
    assert best.defence == DEFENCE_OF_BEST
    assert with_preset(best, "best", "").defence == Defence()
    # Masked uploads leave out what needs single ones.
    masked = chosen(metro, monkeypatch, "--method", "fedavg", "--set", "privacy.masked=true")
    assert masked.defence == replace(DEFENCE_OF_BEST, admission=0.0, joint=0.0)
    assert masked.privacy.masked
    fewer = chosen(metro, monkeypatch, "--rounds", "7", "--seed", "3")
    assert (fewer.training.rounds, fewer.seed) == (7, 3)
    help_ = runner.invoke(federation_app, ["run", "--help"]).output
    assert "--preset" in help_ and "Default: best" in re.sub(r"[│\s]+", " ", help_)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--preset", "bets"], "unknown preset bets; did you mean best"),
        (["--set", "data.clients=5"], "data cannot be set here"),
        (["--set", "training.warm_start=x"], "a file that the sites do not have"),
        (["--set", "windows.lags=none"], "lags"),
        (["--set", "options.rhoo=1"], "no option options.rhoo"),
        (["--method", "fuel"], "unknown method fuel"),
        (["--set", "privacy.masked=true"], "only the mean of the uploads .*, not for fuels"),
        (
            ["--method", "fedavg", "--set", "privacy.masked=true", "--set", "defence.admission=5"],
            "defence.admission = 5.0 needs single uploads",
        ),
        (["--resume", "--rounds", "9"], "with its own settings"),
        (["--resume"], "there is no run to resume"),
    ],
)
def test_a_run_that_cannot_be_is_refused_before_anyone_hears_of_it(
    metro: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], reason: str
) -> None:
    with pytest.raises(FuelsError, match=reason):
        chosen(metro, monkeypatch, *arguments)
