"""After founding, with what the founder keeps: sites, keys and certificates."""

from __future__ import annotations

import shutil
import ssl
import stat
import subprocess
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import load_ssh_private_key

from fuels.errors import FuelsError
from fuels.federation.flower.folders import ServerFolder, SiteFolder
from fuels.federation.flower.pki import make_site_key
from fuels.federation.flower.provisioning import admit, provision
from helpers.flower_world import fuels

pytest.importorskip("flwr")


@pytest.fixture
def metro(tmp_path: Path) -> Path:
    provision(tmp_path / "metro", "metro", ["north", "south"], "fed.example.org", 9092)
    return tmp_path / "metro"


@pytest.fixture
def kept(metro: Path, tmp_path: Path) -> Path:
    """What the founder has after handing over, as the page says: authority/ and the page."""
    shutil.move(metro / "server", tmp_path / "server")
    shutil.move(metro / "sites", tmp_path / "sites")
    return metro


def public(folder: Path) -> str:
    return (folder / "site.pub").read_text().strip()


def private_keys(root: Path) -> dict[str, int]:
    return {
        str(path.relative_to(root)): stat.S_IMODE(path.stat().st_mode)
        for path in root.rglob("*.key")
    }


# -- sites -----------------------------------------------------------------------------------------


def test_a_site_is_added_where_all_folders_are(metro: Path) -> None:
    fuels("federation", "add-site", metro, "west")
    sites = ServerFolder(metro).config.sites
    assert set(sites) == {"north", "south", "west"}
    assert sites["west"] == public(metro / "sites/west")
    # What the founder keeps says the same.
    assert ServerFolder(metro / "authority").config == ServerFolder(metro).config


def test_a_site_is_added_with_what_the_founder_keeps(kept: Path, tmp_path: Path) -> None:
    shown = fuels("federation", "add-site", kept, "west", "--methods", "fuels,fedavg").output
    assert "fuels server admit DIR west site.pub" in " ".join(shown.split())
    site, server = SiteFolder(kept / "sites/west"), ServerFolder(tmp_path / "server")
    assert (site.config.name, site.config.server) == ("west", "fed.example.org:9092")
    assert site.config.consent.methods == ("fuels", "fedavg")
    assert site.ca.read_bytes() == (tmp_path / "sites/north/ca.pem").read_bytes()
    own = ("sites/west/site.key", "sites/west/sums.key")
    assert private_keys(kept) == dict.fromkeys(("authority/ca.key", *own), 0o600)
    before = server.config_file.read_text()
    assert "west" not in server.config.sites
    assert "is admitted" in fuels("server", "admit", server.path, "west", site.public_key).output
    assert server.config.sites["west"] == public(site.path)
    assert server.config_file.read_text().replace(f'west = "{public(site.path)}"\n', "") == before


def test_a_site_that_lost_its_folder_gets_another(kept: Path, tmp_path: Path) -> None:
    server = ServerFolder(tmp_path / "server")
    lost = public(tmp_path / "sites/north")
    fuels("federation", "add-site", kept, "north", "--again")
    folder = kept / "sites/north"
    assert SiteFolder(folder).config.name == "north" and public(folder) != lost
    shown = fuels("server", "admit", server.path, "north", folder / "site.pub").output
    assert "the former one is revoked" in shown
    assert server.config.sites["north"] == public(folder) and len(server.config.sites) == 2
    assert lost not in server.config_file.read_text()
    # And once more: the record of the founder follows.
    shutil.rmtree(folder)
    fuels("federation", "add-site", kept, "north", "--again")
    assert ServerFolder(kept / "authority").config.sites["north"] == public(folder)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["west", "--methods", "nonsense"], "unknown method nonsense"),
        (["west", "--methods", ","], "at least one method"),
        (["North"], "lower-case"),
        (["north"], "there is already a site north; if it lost its folder"),
        (["west", "--again"], "there is no site west; omit --again"),
    ],
)
@pytest.mark.parametrize("handed_over", [False, True])
def test_sites_that_cannot_be_added(
    metro: Path,
    request: pytest.FixtureRequest,
    arguments: list[str],
    reason: str,
    handed_over: bool,
) -> None:
    if handed_over:
        request.getfixturevalue("kept")
    before = {path: path.read_bytes() for path in metro.rglob("*") if path.is_file()}
    with pytest.raises(FuelsError, match=reason):
        fuels("federation", "add-site", metro, *arguments)
    assert {path: path.read_bytes() for path in metro.rglob("*") if path.is_file()} == before


def test_a_site_is_added_where_the_authority_is_and_never_over_another(metro: Path) -> None:
    with pytest.raises(FuelsError, match="not the founder's folder: authority/ is missing"):
        fuels("federation", "add-site", metro / "server", "west")
    (metro / "sites" / "west").mkdir()
    with pytest.raises(FuelsError, match="exists and is not replaced"):
        fuels("federation", "add-site", metro, "west")
    assert list((metro / "sites" / "west").iterdir()) == []
    (metro / "authority" / "server.toml").unlink()
    shutil.rmtree(metro / "server")
    with pytest.raises(FuelsError, match=r"server\.toml is missing; copy the server"):
        fuels("federation", "add-site", metro, "east")


# -- keys ------------------------------------------------------------------------------------------


def test_a_site_makes_itself_a_new_key(kept: Path, tmp_path: Path) -> None:
    folder, server = tmp_path / "sites/north", ServerFolder(tmp_path / "server")
    (folder / "runs").mkdir()
    former, secret = public(folder), (folder / "site.key").read_bytes()
    fuels("site", "renew-key", folder)
    assert public(folder) != former and (folder / "site.pub.former").read_text().strip() == former
    assert (folder / "site.key.former").read_bytes() == secret
    key = load_ssh_private_key((folder / "site.key").read_bytes(), None)
    numbers = key.public_key().public_numbers()  # type: ignore[union-attr]
    assert numbers == _numbers(public(folder))
    for name in ("site.key", "site.key.former"):
        assert stat.S_IMODE((folder / name).stat().st_mode) == 0o600
    fuels("server", "admit", server.path, "north", folder / "site.pub")
    assert server.config.sites["north"] == public(folder)
    fuels("site", "renew-key", folder)  # as often as one likes
    keys = {"site.key", "site.pub", "sums.key", "sums.pub"}
    names = {"ca.pem", "federation.secret", "runs", "state", "site.toml", *keys}
    assert {p.name for p in folder.iterdir()} == {*names, *(f"{key}.former" for key in keys)}


def _numbers(line: str) -> object:
    from cryptography.hazmat.primitives.serialization import load_ssh_public_key

    return load_ssh_public_key(line.encode()).public_numbers()  # type: ignore[union-attr]


def test_a_key_of_ssh_keygen_is_let_in(metro: Path, tmp_path: Path) -> None:
    """With the comment that such a file has."""
    line = make_site_key(tmp_path)
    (tmp_path / "sent.pub").write_text(f"{line} somebody@somewhere\n")
    fuels("server", "admit", metro, "north", tmp_path / "sent.pub")
    assert ServerFolder(metro).config.sites["north"] == line


def test_keys_that_are_not_let_in(metro: Path, tmp_path: Path) -> None:
    before = (metro / "server/server.toml").read_text()
    own, other = metro / "sites/north", tmp_path / "other.pub"
    other.write_text("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJ/9P1hDHlTOBu4VFPEpuGTl8ZSm2pc3GyRwNP\n")
    for name, file, reason in (
        ("north", own / "site.key", "this is a private key, which must never be sent"),
        ("north", own / "site.pub", "site north already has this key"),
        ("west", own / "site.pub", "site north already has this key"),
        ("west", other, "not the public key of a site"),
        ("west", metro / "README.md", "not the public key of a site"),
        ("west", tmp_path / "nothing", "not readable as a public key"),
        ("West", own / "site.pub", "lower-case"),
    ):
        with pytest.raises(FuelsError, match=reason):
            fuels("server", "admit", metro, name, file)
    assert (metro / "server/server.toml").read_text() == before


@pytest.mark.parametrize(
    ("old", "new", "by_hand"),
    [
        ("[sites]", "[sites]  # who may take part", False),
        ("[sites]", "[ sites ]", False),
        ("north = ", '"north" = ', False),
        ("[sites]", "[rules.more]\n[sites]", True),  # the file is wrong before
    ],
)
def test_however_the_list_of_sites_is_written(
    metro: Path, tmp_path: Path, old: str, new: str, by_hand: bool
) -> None:
    server, line = ServerFolder(metro), make_site_key(tmp_path)
    file = server.config_file
    file.write_text(file.read_text().replace(old, new))
    if by_hand:
        with pytest.raises(FuelsError):
            admit(server, "north", line)
        return
    south = server.config.sites["south"]
    assert admit(server, "north", line)
    assert server.config.sites == {"north": line, "south": south}
    assert new.partition("\n")[0] in file.read_text() or old == "north = "


def test_a_list_that_cannot_be_edited_is_left_to_a_person(metro: Path, tmp_path: Path) -> None:
    server, line = ServerFolder(metro), make_site_key(tmp_path)
    text, sites = server.config_file.read_text(), server.config.sites
    head = text[: text.index("[")]
    pairs = ", ".join(f'{name} = "{key}"' for name, key in sites.items())
    text = f"{head}sites = {{{pairs}}}\n" + text[text.index("[") : text.index("[sites]")]
    server.config_file.write_text(text)
    assert server.config.sites == sites
    with pytest.raises(FuelsError, match=r"add this line to \[sites\]: west = "):
        admit(server, "west", line)
    assert server.config_file.read_text() == text


def test_without_a_list_there_is_one(metro: Path, tmp_path: Path) -> None:
    server, line = ServerFolder(metro), make_site_key(tmp_path)
    text = server.config_file.read_text()
    server.config_file.write_text(text[: text.index("[sites]")])
    assert not admit(server, "west", line)
    assert server.config.sites == {"west": line}


# -- certificates ----------------------------------------------------------------------------------


def certificate(folder: Path, authority: Path) -> x509.Certificate:
    """The server's certificate, which fits its key and is signed by the authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    found = x509.load_pem_x509_certificate((folder / "server.pem").read_bytes())
    found.verify_directly_issued_by(
        x509.load_pem_x509_certificate((authority / "ca.pem").read_bytes())
    )
    names = found.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "fed.example.org" in names.get_values_for_type(x509.DNSName)
    assert stat.S_IMODE((folder / "server.key").stat().st_mode) == 0o600
    return found


def test_renewing_where_the_server_is(metro: Path) -> None:
    before = certificate(metro / "server", metro / "authority")
    text = fuels("federation", "renew", metro).output
    assert "restart it" in text
    assert certificate(metro / "server", metro / "authority") != before
    assert not (metro / "server" / "renewed").exists()


@pytest.mark.parametrize("lost", ["server.key", "server.pem"])
def test_what_is_lost_or_was_left_half_done_is_made_anew(metro: Path, lost: str) -> None:
    for folder in (metro / "server", metro / "sites/north"):
        (folder / "renewed").mkdir()
        (folder / "renewed" / "server.key").write_text("half a k")
    (metro / "server" / lost).unlink()
    fuels("federation", "renew", metro)
    certificate(metro / "server", metro / "authority")
    assert not (metro / "server" / f"{lost}.former").exists()
    former = public(metro / "sites/north")
    fuels("site", "renew-key", metro / "sites/north")
    assert public(metro / "sites/north") != former
    assert not list(metro.rglob("renewed"))


def test_renewing_with_what_the_founder_keeps(kept: Path, tmp_path: Path) -> None:
    """The new files go into the server's folder; all of them make a lost one whole again."""
    server = tmp_path / "server"
    before = certificate(server, kept / "authority")
    fuels("federation", "renew", kept)
    for name in ("server.key", "server.pem"):
        shutil.copy2(kept / "server" / name, server / name)
    assert certificate(server, kept / "authority") != before
    again = ServerFolder(kept)
    assert again.config == ServerFolder(server).config and (again.app / "pyproject.toml").exists()
    assert {p.name for p in again.path.iterdir()} == {p.name for p in server.iterdir()}


def test_nothing_is_renewed_without_the_authoritys_key(metro: Path) -> None:
    before = (metro / "server/server.pem").read_bytes()
    (metro / "authority/ca.key").unlink()
    with pytest.raises(FuelsError, match=r"its ca\.key is needed to sign"):
        fuels("federation", "renew", metro)
    assert (metro / "server/server.pem").read_bytes() == before


def test_the_page_says_what_the_founder_keeps(metro: Path) -> None:
    page = (metro / "README.md").read_text()
    assert "Keep `metro/authority/`" in page and "add-site metro NAME --again" in page


def test_a_key_made_by_hand_as_the_runbook_once_said(tmp_path: Path, metro: Path) -> None:
    """Sites without this program at hand may use OpenSSH."""
    keygen = shutil.which("ssh-keygen")
    if keygen is None:
        pytest.skip("OpenSSH is not installed")
    file = tmp_path / "site.key"
    command = [keygen, "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(file)]
    subprocess.run(command, check=True, timeout=60)
    fuels("server", "admit", metro, "north", tmp_path / "site.key.pub")
    line = " ".join((tmp_path / "site.key.pub").read_text().split()[:2])
    assert line in (metro / "server/server.toml").read_text()
