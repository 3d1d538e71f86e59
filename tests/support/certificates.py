"""Certificates for tests of TLS: an authority of the test's own, and what it signs."""

from __future__ import annotations

import datetime
import ipaddress
import socket
import ssl
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_USES = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]


class Authority:
    """Signs certificates; `file` has its own. All of them are valid for an hour."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self.folder = folder
        self.file = folder / f"{name}.pem"
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        own = self._certificate(self._name, self._key, x509.BasicConstraints(ca=True, path_length=0))
        self.file.write_bytes(_pem(own.sign(self._key, hashes.SHA256())))

    def issue(self, name: str, *hosts: str, passphrase: bytes | None = None) -> tuple[Path, Path]:
        """The files of a new certificate for these hosts (by default 127.0.0.1), and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = (
            self._certificate(subject, key, x509.BasicConstraints(ca=False, path_length=None))
            .add_extension(x509.SubjectAlternativeName(_names(hosts or ("127.0.0.1",))), critical=False)
            .add_extension(x509.ExtendedKeyUsage(_USES), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        files = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        files[0].write_bytes(_pem(made) + self.file.read_bytes())
        files[1].write_bytes(_private(key, passphrase))
        return files

    def _certificate(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, constraints: x509.BasicConstraints
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        hour = datetime.timedelta(hours=1)
        issuer = self._key.public_key()
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - hour)
            .not_valid_after(now + hour)
            .add_extension(constraints, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer), critical=False)
        )

    def context(self) -> ssl.SSLContext:
        """A client's context that trusts what this authority signed."""
        return ssl.create_default_context(cafile=self.file)


def _names(hosts: tuple[str, ...]) -> list[x509.GeneralName]:
    return [_name(host) for host in hosts]


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _private(key: ec.EllipticCurvePrivateKey, passphrase: bytes | None) -> bytes:
    locked = (
        serialization.NoEncryption()
        if passphrase is None
        else serialization.BestAvailableEncryption(passphrase)
    )
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)


def replace(files: tuple[Path, Path], by: tuple[Path, Path]) -> None:
    """Put a new certificate and key in the place of those in use, as a renewal does."""
    for old, new in zip(files, by, strict=True):
        draft = old.with_suffix(".draft")
        draft.write_bytes(new.read_bytes())
        draft.replace(old)


def serial_of(context: ssl.SSLContext, host: str, port: int) -> int:
    """The serial number of the certificate that a server shows on a new connection."""
    with (
        socket.create_connection((host, port), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname=host) as secure,
    ):
        shown = secure.getpeercert(binary_form=True)
        assert shown is not None
        return x509.load_der_x509_certificate(shown).serial_number


def end_in(file: Path) -> float:
    """When the first certificate in a file ends, in seconds since the epoch."""
    return x509.load_pem_x509_certificate(file.read_bytes()).not_valid_after_utc.timestamp()


def serial_in(file: Path) -> int:
    """The serial number of the first certificate in a file."""
    return x509.load_pem_x509_certificates(file.read_bytes())[0].serial_number
