"""Makes the report server's CA and certificate: pods trust the CA that their own annotation carries."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_LIFE = timedelta(days=3650)
LEAF_LIFE = timedelta(days=365)
BACKDATED = timedelta(hours=1)


@dataclass(frozen=True)
class Certificates:
    """PEM texts: the CA with its key, and the server's certificate with its key."""

    ca: str
    ca_key: str
    leaf: str
    leaf_key: str


def issue(host: str, now: datetime, old: Certificates | None = None) -> Certificates:
    """Return certificates for `host`: the old ones while they have a third of their life left, else new under the old CA."""
    if old and lasts(old.ca, CA_LIFE, now):
        if lasts(old.leaf, LEAF_LIFE, now) and host in names_in(old.leaf):
            return old
        ca, ca_key = old.ca, old.ca_key
    else:
        ca, ca_key = _authority(now)
    leaf, leaf_key = _server(host, ca, ca_key, now)
    return Certificates(ca, ca_key, leaf, leaf_key)


def lasts(pem: str, life: timedelta, now: datetime) -> bool:
    """Whether a certificate has more than a third of its life left."""
    return x509.load_pem_x509_certificate(pem.encode()).not_valid_after_utc - now > life / 3


def names_in(pem: str) -> list[str]:
    """Return the DNS names that a certificate is for."""
    found = x509.load_pem_x509_certificate(pem.encode()).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return found.value.get_values_for_type(x509.DNSName)


def _authority(now: datetime) -> tuple[str, str]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"halo-reports-{now.astimezone(UTC):%Y%m%d}")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + CA_LIFE)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return _pem(certificate), _key_pem(key)


def _server(host: str, ca_pem: str, ca_key_pem: str, now: datetime) -> tuple[str, str]:
    ca = x509.load_pem_x509_certificate(ca_pem.encode())
    ca_key = serialization.load_pem_private_key(ca_key_pem.encode(), None)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, host[:64])]))
        .issuer_name(ca.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + LEAF_LIFE)
        .add_extension(
            x509.SubjectAlternativeName([x509.DNSName(host), x509.DNSName(f"{host}.cluster.local")]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.public_key()), critical=False)  # type: ignore[arg-type]
        .add_extension(_usage(signs_certificates=False), critical=True)
        .sign(ca_key, hashes.SHA256())  # type: ignore[arg-type]
    )
    return _pem(certificate), _key_pem(key)


def _usage(signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(certificate: x509.Certificate) -> str:
    return certificate.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
