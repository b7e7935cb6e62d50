"""The keys of secure sums, and the roster that the founder signs."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from fuels.cli.commands import app
from fuels.errors import FuelsError
from fuels.federation.flower.folders import RefusalError, ServerFolder, SiteFolder
from fuels.federation.flower.provisioning import provision
from fuels.federation.flower.sum_keys import (
    read_server_roster,
    read_sums_key,
    secure_sums,
    used_mark,
)
from fuels.sharing.roster import read_roster

SITES = ["east", "north", "south"]


@pytest.fixture
def metro(tmp_path: Path) -> Path:
    provision(tmp_path / "metro", "metro", SITES, "127.0.0.1", 9092)
    return tmp_path / "metro"


def fuels(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def roster(*arguments: object) -> str:
    result = fuels("federation", "roster", *arguments)
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def test_the_roster_has_the_sites_keys_and_counts_up(metro: Path) -> None:
    server, folder = ServerFolder(metro), SiteFolder(metro / "sites/north")
    assert read_server_roster(server) is None
    shown = roster(metro, "--clients", "north=12,south=9,east=20")
    assert "roster 1 is signed: east 20, north 12, south 9" in shown
    found = read_server_roster(server)
    assert found is not None
    signed = read_roster(found[0], folder.ca.read_bytes(), "metro")
    assert signed == found[1] and signed.clients(("east", "south")) == 29
    assert signed.members["north"].key == read_sums_key(folder.sums_public)
    # A new key, made at the site: the founder needs only its public half.
    former = folder.sums_key.read_bytes()
    used_mark(folder).touch()
    assert fuels("site", "renew-key", folder.path).exit_code == 0
    assert folder.sums_key.read_bytes() != former and not used_mark(folder).exists()
    shown = roster(metro, "--key", f"north={folder.sums_public}")
    assert "roster 2 is signed: east 20, north 12, south 9" in shown
    found = read_server_roster(server)
    assert found is not None and found[1].members["north"].key == read_sums_key(folder.sums_public)


def test_the_founder_needs_only_the_authority(metro: Path) -> None:
    (metro / "server").rename(metro.parent / "server")
    (metro / "sites").rename(metro.parent / "sites")
    shown = roster(metro, "--clients", "north=12,south=9")
    assert "give" in shown and "authority/roster.json to the server's operator" in shown
    assert "sums need at least three sites" in shown


def test_a_new_site_joins_and_an_excluded_one_leaves(metro: Path) -> None:
    roster(metro, "--clients", "north=12,south=9,east=20")
    assert fuels("federation", "add-site", metro, "west").exit_code == 0
    file = ServerFolder(metro).config_file
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(line for line in lines if not line.startswith("south = ")))
    assert "roster 2 is signed: east 20, north 12, west 7" in roster(metro, "--clients", "west=7")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ((), "--clients needs the number of clients of each site"),
        (("--clients", "north"), "--clients 'north' must be a site and a value"),
        (("--clients", "north=x"), "x is not a number of clients"),
        (("--clients", "north=0"), "a site has at least 1 client"),
        (("--clients", "north=1,north=2"), "names site north twice"),
        (("--clients", "west=1"), "there is no site west"),
        (("--clients", "north=1", "--key", "north=none.pub"), "none.pub: not the public key"),
    ],
)
def test_what_cannot_be_certified(metro: Path, arguments: tuple[str, ...], reason: str) -> None:
    result = fuels("federation", "roster", metro, *arguments)
    assert isinstance(result.exception, FuelsError) and reason in str(result.exception)
    assert not (metro / "authority/roster.json").exists()


def test_two_sites_cannot_have_the_same_key_and_a_missing_one_is_named(metro: Path) -> None:
    same = ("--key", f"north={metro / 'sites/south/sums.pub'}")
    result = fuels("federation", "roster", metro, "--clients", "north=1,south=2", *same)
    assert "two sites of the roster have the same key" in str(result.exception)
    (metro / "authority/sums/north.pub").unlink()  # a federation of an earlier version
    result = fuels("federation", "roster", metro, "--clients", "north=1")
    assert "create keys at site north with fuels site renew-key" in str(result.exception)


def test_a_site_without_a_usable_key_says_so(metro: Path) -> None:
    folder = SiteFolder(metro / "sites/north")
    assert secure_sums(folder, folder.config).min_clients == 10
    assert secure_sums(folder, folder.config, 12).min_clients == 12
    folder.sums_key.write_bytes(b"short")
    with pytest.raises(RefusalError, match="damaged: renew it with fuels site renew-key"):
        secure_sums(folder, folder.config)
    folder.sums_key.unlink()
    with pytest.raises(RefusalError, match=r"no sums\.key yet"):
        secure_sums(folder, folder.config)
