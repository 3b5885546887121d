"""Certificates: an authority for each run, and a P-256 certificate for each client.

The client's name is the certificate's only subject alternative name. Keys are files with mode 0600.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from spodgt.errors import InvalidInput
from spodgt.peer.host.files import DISK, Files

# for which a client's certificate is valid by default; `operator_warnings.WARN_DAYS` warns of its end
DAYS = 30
OBSERVER = "observer"  # name in certificates for requests of status; no client has it
_CA_DAYS = 3650
_SKEW = timedelta(minutes=5)  # clocks of honest hosts differ a little
_PEM = serialization.Encoding.PEM
_DAMAGE = (  # what reading a damaged certificate raises
    ValueError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
)


@dataclass(frozen=True)
class Identity:
    """A client's key and certificate, and the authority's certificate, as PEM."""

    name: str
    key: bytes
    certificate: bytes
    authority: bytes
    folder: Path | None = None  # where the files are, if they are files

    @classmethod
    def read(
        cls, folder: Path, name: str, files: Files = DISK, now: float | None = None
    ) -> Identity:
        """From a client's folder; refused if it would fail later in a TLS handshake.

        Args:
            folder: of the client.
            name: of the client, which the certificate must have, too.
            files: the disk.
            now: seconds of the wall clock; default: that of the system.
        """
        try:
            parts = [files.read(folder / file) for file in ("key.pem", "cert.pem", "ca.pem")]
            mode = files.status(folder / "key.pem").mode
        except OSError as error:
            why = f"cannot be read: {error.strerror}"
            fix = f"make it with: spodgt peer issue {name}"
            raise InvalidInput(f"{error.filename} {why}; {fix}.") from None
        if mode & 0o077 and os.name == "posix":
            readable = f"{folder / 'key.pem'} has mode {mode:04o}, others could read it"
            raise InvalidInput(f"{readable}; run: chmod 600 {folder / 'key.pem'}")
        key, certificate, authority = parts
        identity = cls(name, key, certificate, authority, folder)
        check(identity, now)
        return identity


def certificate_name(folder: Path) -> str:
    """The name in a folder's certificate; "" if there is none."""
    try:
        names = _names(_certificate((folder / "cert.pem").read_bytes(), "cert.pem"))
    except (OSError, InvalidInput):
        return ""
    return names[0] if len(names) == 1 else ""


def create_authority(run: str) -> tuple[bytes, bytes]:
    """A new authority: its key and its certificate, as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = _common_name(f"spodgt run {run}")
    # digital_signature, key_cert_sign and crl_sign
    usage = x509.KeyUsage(True, False, False, False, False, True, True, False, False)
    builder = _builder(name, name, key, _utc(None), _CA_DAYS).add_extension(usage, critical=True)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    builder = builder.add_extension(own, critical=False)
    return _pem(key), builder.sign(key, hashes.SHA256()).public_bytes(_PEM)


def issue(
    authority_key: bytes,
    authority: bytes,
    name: str,
    *,
    days: float = DAYS,
    start: datetime | None = None,
) -> Identity:
    """A certificate for `name`, good for both ends of a link, for `days` from `start` or from now."""
    signer = _private(authority_key, "ca.key")
    root = _certificate(authority, "ca.pem")
    key = ec.generate_private_key(ec.SECP256R1())
    both = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    builder = _builder(_common_name(name), root.subject, key, start or _utc(None), days)
    builder = builder.add_extension(
        x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False
    )
    builder = builder.add_extension(both, critical=False)
    builder = builder.add_extension(
        x509.BasicConstraints(ca=False, path_length=None), critical=True
    )
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    builder = builder.add_extension(issuer, critical=False)  # required by RFC 5280
    return Identity(
        name, _pem(key), builder.sign(signer, hashes.SHA256()).public_bytes(_PEM), authority
    )


def check(identity: Identity, now: float | None = None) -> None:
    """Refuse an identity that would fail later in a TLS handshake; `now` is as in `Identity.read`."""
    fix = f"issue a new one with: spodgt peer renew {identity.name}"
    again = f"copy it again, or {fix}"
    certificate = _certificate(identity.certificate, f"cert.pem of {identity.name}", again)
    key = _private(identity.key, f"key.pem of {identity.name}", again)
    authority = _certificate(identity.authority, f"ca.pem of {identity.name}")
    time = _utc(now)
    begin = certificate.not_valid_before_utc
    end = certificate.not_valid_after_utc
    subject = f"the certificate of {identity.name}"
    names = _names(certificate)
    if names != [identity.name]:
        owners = ", ".join(names) or "no client"
        raise InvalidInput(f"the certificate names {owners}, not {identity.name!r}; {fix}.")
    if end < time:
        raise InvalidInput(f"{subject} expired on {end:%Y-%m-%d %H:%M} UTC; {fix}.")
    if begin > time:
        clock = f"this host's clock shows {time:%Y-%m-%d %H:%M}"
        raise InvalidInput(
            f"{subject} begins on {begin:%Y-%m-%d %H:%M} UTC, but {clock}; set the clock."
        )
    if certificate.public_key() != key.public_key():
        raise InvalidInput(
            f"key.pem and cert.pem of {identity.name} do not belong to each other; {fix}."
        )
    try:
        certificate.verify_directly_issued_by(authority)
    except (InvalidSignature, ValueError, TypeError, UnsupportedAlgorithm):
        raise InvalidInput(f"{subject} is from another authority; {fix}.") from None


def seconds_left(certificate: bytes, now: float | None = None) -> float:
    """Seconds until a certificate, given as PEM, ends; below 0 after that."""
    end = x509.load_pem_x509_certificate(certificate).not_valid_after_utc
    return (end - _utc(now)).total_seconds()


def days_left(identity: Identity, now: float | None = None) -> float:
    """Days until the certificate ends; below 0 after that."""
    return seconds_left(identity.certificate, now) / 86400


def sign(authority_key: bytes, text: bytes) -> bytes:
    return _private(authority_key, "ca.key").sign(text, ec.ECDSA(hashes.SHA256()))


def is_signed(authority: bytes, text: bytes, signature: bytes) -> bool:
    """Whether the authority has signed `text`."""
    key = _certificate(authority, "ca.pem").public_key()
    assert isinstance(key, ec.EllipticCurvePublicKey)
    try:
        key.verify(signature, text, ec.ECDSA(hashes.SHA256()))
    except InvalidSignature:
        return False
    return True


def _names(certificate: x509.Certificate) -> list[str]:
    try:
        extension = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return list(extension.value.get_values_for_type(x509.DNSName))


def _certificate(pem: bytes, file: str, fix: str = "copy it again") -> x509.Certificate:
    """The certificate in a file; a file that is damaged or holds something else is refused.

    Parts of a certificate are parsed when they are read first, so all that are used later are read here.
    """
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        _names(certificate)
        certificate.public_key()
        for part in ("subject", "issuer", "not_valid_before_utc", "not_valid_after_utc"):
            getattr(certificate, part)
    except _DAMAGE:
        raise InvalidInput(
            f"{file} holds no whole certificate, but {len(pem)} bytes; {fix}."
        ) from None
    return certificate


def _private(pem: bytes, file: str, fix: str = "copy it again") -> ec.EllipticCurvePrivateKey:
    """The key in a file; a file that was cut off or holds something else is refused."""
    try:
        key = serialization.load_pem_private_key(pem, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):  # TypeError: it has a password
        key = None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InvalidInput(f"{file} holds no whole key of a P-256 certificate; {fix}.")
    return key


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(_PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    start: datetime,
    days: float,
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder(
        issuer, subject, key.public_key(), x509.random_serial_number()
    )
    return builder.not_valid_before(start - _SKEW).not_valid_after(start + timedelta(days=days))


def _common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _utc(now: float | None) -> datetime:
    if now is None:
        return datetime.now(UTC)
    return datetime.fromtimestamp(now, UTC)
