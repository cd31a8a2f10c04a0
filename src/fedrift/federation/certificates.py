"""Certificates and keys for development: one authority, one server, one key for each node."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrift.errors import InputError

DAYS = 365


@dataclass(frozen=True)
class Certificates:
    """Where they lie."""

    authority: Path
    certificate: Path
    key: Path
    nodes: dict[str, Path]
    """Name of a node → its private key; the public one lies beside it, ending in .pub."""


def make_certificates(folder: Path, names: Sequence[str], hosts: Sequence[str]) -> Certificates:
    """New ones in a folder that is not there yet."""
    try:
        from cryptography.hazmat.primitives import serialization  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise InputError(
            "certificates need the package cryptography; "
            "install it with: pip install 'fedrift[flower]'"
        ) from None
    if folder.exists():
        raise InputError(f"folder '{folder}' exists; name a new one, certificates are not replaced")
    folder.mkdir(parents=True, mode=0o700)
    authority_key, authority = _authority()
    key, certificate = _server(authority_key, authority, hosts)
    pem, no_password = serialization.Encoding.PEM, serialization.NoEncryption()
    pkcs8 = serialization.PrivateFormat.PKCS8
    openssh = serialization.PrivateFormat.OpenSSH
    certificates = Certificates(
        folder / "authority.crt", folder / "server.crt", folder / "server.key", dict[str, Path]()
    )
    certificates.authority.write_bytes(authority.public_bytes(pem))
    certificates.certificate.write_bytes(certificate.public_bytes(pem))
    _private(certificates.key, key.private_bytes(pem, pkcs8, no_password))
    _private(folder / "authority.key", authority_key.private_bytes(pem, pkcs8, no_password))
    for name in names:
        own = _key()
        path = certificates.nodes[name] = folder / name
        _private(path, own.private_bytes(pem, openssh, no_password))
        public = own.public_key().public_bytes(
            serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
        )
        path.with_suffix(".pub").write_bytes(public + b"\n")
    return certificates


def _private(path: Path, content: bytes) -> None:
    path.touch(mode=0o600)
    path.write_bytes(content)


def _key() -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec  # pyright: ignore[reportMissingImports]

    return ec.generate_private_key(ec.SECP384R1())


def _authority() -> tuple[Any, Any]:
    from cryptography import x509  # pyright: ignore[reportMissingImports]

    key = _key()
    built = _described("fedrift development authority", None, key.public_key())
    built = built.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    signs = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    built = built.add_extension(signs, critical=True)
    return key, _signed(built, key, key)


def _server(authority_key: Any, authority: Any, hosts: Sequence[str]) -> tuple[Any, Any]:
    from cryptography import x509  # pyright: ignore[reportMissingImports]

    key = _key()
    names = [_host(host) for host in hosts]
    built = _described(hosts[0], authority, key.public_key())
    built = built.add_extension(x509.SubjectAlternativeName(names), critical=False)
    built = built.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    return key, _signed(built, authority_key, key, authority_key)


def _host(host: str) -> Any:
    from cryptography import x509  # pyright: ignore[reportMissingImports]

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _described(name: str, issuer: Any, public: Any) -> Any:
    from cryptography import x509  # pyright: ignore[reportMissingImports]
    from cryptography.x509.oid import NameOID  # pyright: ignore[reportMissingImports]

    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
    )


def _signed(built: Any, signer: Any, own: Any, issuer: Any = None) -> Any:
    """With the identifiers of keys that strict verifiers ask for."""
    from cryptography import x509  # pyright: ignore[reportMissingImports]
    from cryptography.hazmat.primitives import hashes  # pyright: ignore[reportMissingImports]

    subject = x509.SubjectKeyIdentifier.from_public_key(own.public_key())
    built = built.add_extension(subject, critical=False)
    if issuer is not None:
        by = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key())
        built = built.add_extension(by, critical=False)
    return built.sign(signer, hashes.SHA384())
