"""Certificates and keys of a federation, all on the curve P-384.

One certificate authority signs the server's certificate, and sites accept no other server. Each
site proves who it is with its own key pair; the server knows the public half.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fuels.errors import FuelsError

CA_DAYS, SERVER_DAYS = 3650, 825


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


def public_line(pem: bytes) -> str:
    """A public key in PEM as the line that config files hold; "" if it is no such key."""
    try:
        key = serialization.load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm):  # no key, or one on a curve that is not known
        return ""
    return _line(key) if isinstance(key, ec.EllipticCurvePublicKey) else ""


def write_private(path: Path, content: bytes) -> None:
    """A file that only its owner can read, from the first moment on."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise FuelsError(f"{path} exists; it is not replaced") from None
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
