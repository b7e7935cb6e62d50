"""Keys and certificates of a federation, all on the curve P-384, and a site's secret.

One certificate authority signs the server's certificate, and sites accept no other server. Each
site proves its identity with its own key pair; the server has the public half.

A site's secret seeds its noise. The site creates it when it first needs it: whoever set up the
federation may be the server's operator, who must not know it. It is never sent. If it is lost, the
site creates another; a round that is trained again then gets different noise.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import secrets
from pathlib import Path
from tempfile import mkstemp

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fuels.errors import FuelsError
from fuels.federation.flower.folders import key_of, log

CA_DAYS, SERVER_DAYS = 3650, 825

SECRET = "noise.secret"
SIZE = 32  # bytes


def make_authority(folder: Path, federation: str) -> None:
    """ca.key and ca.pem."""
    key = ec.generate_private_key(ec.SECP384R1())
    usage = x509.KeyUsage(
        digital_signature=False, content_commitment=False, key_encipherment=False,
        data_encipherment=False, key_agreement=False, key_cert_sign=True, crl_sign=True,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip
    name = _name(f"{federation} certificate authority")
    certificate = (
        _builder(name, name, key.public_key(), CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .sign(key, hashes.SHA384())
    )
    write_private(folder / "ca.key", _pem(key))
    (folder / "ca.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def make_server_certificate(authority: Path, folder: Path, hosts: list[str]) -> None:
    """server.key and server.pem for these host names and addresses, and a copy of ca.pem."""
    ca_key = serialization.load_pem_private_key((authority / "ca.key").read_bytes(), None)
    ca = x509.load_pem_x509_certificate((authority / "ca.pem").read_bytes())
    if not isinstance(ca_key, ec.EllipticCurvePrivateKey):
        raise FuelsError(f"{authority / 'ca.key'}: not a key of this federation's authority")
    key = ec.generate_private_key(ec.SECP384R1())
    certificate = (
        _builder(_name(hosts[0]), ca.subject, key.public_key(), SERVER_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([_alternative(h) for h in hosts]), False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), False
        )
        .sign(ca_key, hashes.SHA384())
    )
    write_private(folder / "server.key", _pem(key))
    (folder / "server.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (folder / "ca.pem").write_bytes((authority / "ca.pem").read_bytes())


def make_site_key(folder: Path) -> str:
    """site.key and site.pub; returns the public key as one line of text."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.OpenSSH,
        serialization.NoEncryption(),
    )
    write_private(folder / "site.key", private)
    line = _line(key.public_key())
    (folder / "site.pub").write_text(line + "\n", encoding="ascii")
    return line


def public_key_line(pem: bytes) -> str:
    """A public key in PEM as the line used in config files; "" if it is not such a key."""
    try:
        key = serialization.load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm):  # not a key, or on an unknown curve
        return ""
    return _line(key) if isinstance(key, ec.EllipticCurvePublicKey) else ""


def write_private(path: Path, content: bytes) -> None:
    """A file that only its owner can read, from the first moment on."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise FuelsError(f"{path} already exists and is not replaced") from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))  # clocks differ a little
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _line(key: ec.EllipticCurvePublicKey) -> str:
    return key.public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    ).decode("ascii")


def read_public_key(file: Path) -> str:
    """The key in a site.pub that a site sent."""
    try:
        text = file.read_text(encoding="ascii")
    except (OSError, UnicodeError) as error:
        raise FuelsError(f"{file}: not readable as a public key ({error})") from None
    if "PRIVATE KEY" in text:
        raise FuelsError(
            f"{file}: this is a private key, which must never be sent; create a new one at the site"
            " with fuels site renew-key and send site.pub"
        )
    try:
        key = load_ssh_public_key(text.strip().encode("ascii"))
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise FuelsError(f"{file}: not the public key of a site, as in its site.pub")
    return key_of(text)


def read_secret(path: Path) -> bytes:
    """The secret in a file, which is created if it is missing."""
    if not path.exists():
        _make(path)
    if path.stat().st_mode & 0o077:
        _close(path)
    secret = path.read_bytes()
    if len(secret) != SIZE:
        raise FuelsError(f"{path}: not {SIZE} bytes long; delete it, and a new one is created")
    return secret


def _close(path: Path) -> None:
    """Make it readable for its owner only: volumes and backups may change file modes."""
    try:
        path.chmod(0o600)
    except OSError:
        raise FuelsError(
            f"{path}: others can read it; delete it, and a new one is created"
        ) from None
    log.warning("%s: others could read it; now only its owner can", path)


def _make(path: Path) -> None:
    """Create it atomically and readable by its owner only; of two processes, the first one wins."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = mkstemp(dir=path.parent)  # with mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(SIZE))
            file.flush()
            os.fsync(file.fileno())
        os.link(temporary, path)
    except FileExistsError:
        return
    finally:
        Path(temporary).unlink()
