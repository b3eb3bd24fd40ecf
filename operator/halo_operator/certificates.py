"""Makes the operator's CA and certificate, and decides when they rotate: pods and the API server trust what the bundle has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_LIFE = timedelta(days=3650)
LEAF_LIFE = timedelta(days=365)
BACKDATED = timedelta(hours=1)
# A client that nobody can reach must not hold a rotation up for ever.
LONGEST_NOTICE = timedelta(days=1)
# After the switch a replica that has not read the new certificate yet may serve the old one for a moment.
OLD_IS_TRUSTED = timedelta(days=2)


@dataclass(frozen=True)
class Certificates:
    """PEM texts: the CA and the server's certificate with their keys, the CA to come, and the one that was."""

    ca: str
    ca_key: str
    leaf: str
    leaf_key: str
    next_ca: str = ""
    next_key: str = ""
    old_ca: str = ""

    @property
    def bundle(self) -> str:
        """What clients must trust, the oldest first: the switch from one CA to the next does not change it."""
        return self.old_ca + self.ca + self.next_ca


def issue(hosts: Sequence[str], now: datetime, old: Certificates | None = None) -> Certificates:
    """Return certificates for the hosts: the old ones while they have a third of their life left, else new under the old CA.

    Only a CA that has ended is replaced here: one that grows old rotates, see `advance`.
    """
    if old and not_after(old.ca) > now:
        if lasts(old.leaf, LEAF_LIFE, now) and set(hosts) <= set(names_in(old.leaf)):
            return old
        leaf, leaf_key = _server(hosts, old.ca, old.ca_key, now)
        return replace(old, leaf=leaf, leaf_key=leaf_key)
    ca, ca_key = _authority(now)
    return Certificates(ca, ca_key, *_server(hosts, ca, ca_key, now))


def advance(held: Certificates, hosts: Sequence[str], now: datetime, *, asked: bool, is_known: bool) -> Certificates:
    """Return the next step of a rotation, or the same certificates when there is none to take.

    The next CA is announced in the bundle first; it signs only when `is_known`: every client has the bundle.
    """
    if held.next_ca:
        if not is_known and now - born(held.next_ca) < LONGEST_NOTICE:
            return held
        leaf, leaf_key = _server(hosts, held.next_ca, held.next_key, now)
        return Certificates(held.next_ca, held.next_key, leaf, leaf_key, old_ca=held.ca)
    if held.old_ca and now - born(held.ca) > OLD_IS_TRUSTED:
        held = replace(held, old_ca="")
    if asked or not lasts(held.ca, CA_LIFE, now):
        ca, ca_key = _authority(now)
        return replace(held, next_ca=ca, next_key=ca_key)
    return held


def not_after(pem: str) -> datetime:
    """Return when a certificate ends."""
    return x509.load_pem_x509_certificate(pem.encode()).not_valid_after_utc


def born(pem: str) -> datetime:
    """Return when a certificate was made."""
    return x509.load_pem_x509_certificate(pem.encode()).not_valid_before_utc + BACKDATED


def lasts(pem: str, life: timedelta, now: datetime) -> bool:
    """Whether a certificate has more than a third of its life left."""
    return not_after(pem) - now > life / 3


def names_in(pem: str) -> list[str]:
    """Return the DNS names and addresses that a certificate is for."""
    found = x509.load_pem_x509_certificate(pem.encode()).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return [*found.value.get_values_for_type(x509.DNSName), *map(str, found.value.get_values_for_type(x509.IPAddress))]


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _authority(now: datetime) -> tuple[str, str]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"halo-{now.astimezone(UTC):%Y%m%d-%H%M%S}")])
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


def _server(hosts: Sequence[str], ca_pem: str, ca_key_pem: str, now: datetime) -> tuple[str, str]:
    ca = x509.load_pem_x509_certificate(ca_pem.encode())
    ca_key = serialization.load_pem_private_key(ca_key_pem.encode(), None)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])]))
        .issuer_name(ca.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + LEAF_LIFE)
        .add_extension(
            x509.SubjectAlternativeName([*map(_name, hosts), x509.DNSName(f"{hosts[0]}.cluster.local")]), critical=False
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
