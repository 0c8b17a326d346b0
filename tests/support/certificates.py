"""Certificates for one test run: an authority, a server on loopback, a client, and an authority nobody knows."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID


@dataclass(frozen=True)
class Certificates:
    ca: Path
    other_ca: Path
    server_cert: Path
    server_key: Path
    client_cert: Path
    client_key: Path


@dataclass(frozen=True)
class _Signer:
    key: ec.EllipticCurvePrivateKey
    cert: x509.Certificate


def _sign(name: str, issuer: _Signer | None) -> _Signer:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.cert.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
    )
    if issuer:
        loopback = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
        usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.SubjectAlternativeName([loopback]), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    return _Signer(key, builder.sign(issuer.key if issuer else key, hashes.SHA256()))


def make_certificates(folder: Path) -> Certificates:
    def write(name: str, signer: _Signer) -> tuple[Path, Path]:
        cert, key = folder / f"{name}.pem", folder / f"{name}.key"
        cert.write_bytes(signer.cert.public_bytes(serialization.Encoding.PEM))
        key.write_bytes(
            signer.key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return cert, key

    authority = _sign("authority", None)
    ca, _ = write("ca", authority)
    other_ca, _ = write("other-ca", _sign("stranger", None))
    return Certificates(
        ca, other_ca, *write("server", _sign("etcd", authority)), *write("client", _sign("ctl", authority))
    )
