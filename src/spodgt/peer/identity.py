"""Certificates: an authority for each run, and a P-256 certificate for each client.

The client's name is the certificate's only subject alternative name. Keys are files with mode 0600.
"""

from __future__ import annotations

import datetime
import os
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from spodgt.errors import InvalidInput

DAYS = 30
_CA_DAYS = 3650
_SKEW = datetime.timedelta(minutes=5)  # clocks of honest hosts differ a little


@dataclass(frozen=True)
class Identity:
    """A client's key and certificate, and the authority's certificate, as PEM."""

    name: str
    key: bytes
    certificate: bytes
    authority: bytes


def read(folder: Path, name: str) -> Identity:
    """The identity of client `name` in its folder."""
    try:
        parts = [(folder / file).read_bytes() for file in ("key.pem", "cert.pem", "ca.pem")]
    except OSError as error:
        raise InvalidInput(
            f"{error.filename} cannot be read: {error.strerror}; make it with: spodgt peer issue {name}."
        ) from None
    return Identity(name, *parts)


def create_authority(run: str) -> tuple[bytes, bytes]:
    """A new authority: its key and its certificate, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"spodgt run {run}")])
    builder = _builder(name, name, key.public_key(), _now(), _CA_DAYS)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    certificate = builder.add_extension(usage, critical=True).sign(key, hashes.SHA256())
    return _pem(key), certificate.public_bytes(serialization.Encoding.PEM)


def issue(
    authority_key: bytes,
    authority: bytes,
    name: str,
    *,
    days: float = DAYS,
    start: datetime.datetime | None = None,
) -> Identity:
    """A certificate for `name`, good for both ends of a link."""
    signer, root = _private(authority_key), x509.load_pem_x509_certificate(authority)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = _builder(subject, root.subject, key.public_key(), start or _now(), days)
    builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    both = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    builder = builder.add_extension(both, critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    certificate = builder.sign(signer, hashes.SHA256())
    return Identity(name, _pem(key), certificate.public_bytes(serialization.Encoding.PEM), authority)


def check(identity: Identity) -> None:
    """Report now, in one sentence, what would fail later in a handshake."""
    certificate, now = x509.load_pem_x509_certificate(identity.certificate), _now()
    names, begin, end = (
        names_of(certificate),
        certificate.not_valid_before_utc,
        certificate.not_valid_after_utc,
    )
    fix = f"issue a new one with: spodgt peer issue {identity.name}"
    if names != [identity.name]:
        raise InvalidInput(
            f"the certificate names {', '.join(names) or 'nobody'}, not {identity.name!r}; {fix}."
        )
    if end < now:
        raise InvalidInput(f"the certificate of {identity.name} expired on {end:%Y-%m-%d %H:%M} UTC; {fix}.")
    if begin > now:
        raise InvalidInput(
            f"the certificate of {identity.name} begins on {begin:%Y-%m-%d %H:%M} UTC, "
            f"but this host's clock says {now:%Y-%m-%d %H:%M}; set the clock."
        )
    try:
        certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(identity.authority))
    except (InvalidSignature, ValueError, TypeError):
        raise InvalidInput(f"the certificate of {identity.name} is from another authority; {fix}.") from None


def names_of(certificate: x509.Certificate) -> list[str]:
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return list(found.value.get_values_for_type(x509.DNSName))


def sign(authority_key: bytes, text: bytes) -> bytes:
    """The authority's signature of `text`."""
    return _private(authority_key).sign(text, ec.ECDSA(hashes.SHA256()))


def verified(authority: bytes, text: bytes, signature: bytes) -> bool:
    """Whether the authority has signed `text`."""
    key = x509.load_pem_x509_certificate(authority).public_key()
    try:
        assert isinstance(key, ec.EllipticCurvePublicKey)
        key.verify(signature, text, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


def write_secret(path: Path, data: bytes) -> None:
    """Write a file that only its owner reads."""
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(data)


def _private(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pem, None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    return key


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    start: datetime.datetime,
    days: float,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - _SKEW)
        .not_valid_after(start + datetime.timedelta(days=days))
    )


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.timezone.utc)
