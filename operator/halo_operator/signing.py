"""Signs receipts, and keeps the key that does: private in a Secret, every public one that was ever used in a ConfigMap.

ECDSA on P-256, since most verifiers take it: cosign 3 failed on Ed25519 keys (sigstore/cosign#5074), model-signing takes NIST curves only.
"""

from __future__ import annotations

import logging
from base64 import b64decode, b64encode
from collections.abc import Mapping

from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from google.protobuf import json_format
from in_toto_attestation.v1 import statement_pb2
from in_toto_attestation.v1.statement import Statement
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import UnverifiedSignatureError
from securesystemslib.signer import SecretsHandler, Signature, Signer, SSlibKey

from halo_api.digests import canonical
from halo_api.receipt import KEYS_CONFIG_MAP, PAYLOAD_TYPE
from halo_api.receipt_check import Verifier
from halo_operator.cluster import Cluster, ClusterError, Conflict, NotFound, Object

log = logging.getLogger(__name__)

SECRET = "halo-operator-receipt-key"  # noqa: S105
KEY_FILE = "key.pem"
# On the operator's own Secret, any value: sign with a new key from now on.
ROTATE_ANNOTATION = "halo.training/rotate-receipt-key"
LABELS = {"app.kubernetes.io/managed-by": "halo"}
TRIES = 5


class KeyUnusable(ClusterError):
    """The Secret has no key that can sign; a person must put one there."""

    def __init__(self, secret: str, found: str) -> None:
        would_do = "openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 makes one that would do"
        super().__init__(
            0, f"Secret {secret}, {KEY_FILE}: found {found}, and receipts are signed by ECDSA P-256; {would_do}"
        )


class ReceiptSigner(Signer):
    """A key that signs: deterministically, so that a receipt that is made again after a crash is the same file."""

    def __init__(self, key: ec.EllipticCurvePrivateKey) -> None:
        self._key = key
        # Its id is what securesystemslib derives from the public key alone: it skips a signature by another id.
        self._public = SSlibKey.from_crypto(key.public_key())

    @classmethod
    def from_priv_key_uri(
        cls, priv_key_uri: str, public_key: object, secrets_handler: SecretsHandler | None = None
    ) -> ReceiptSigner:
        """Not offered: the key comes from a Secret."""
        raise NotImplementedError(priv_key_uri)

    @property
    def public_key(self) -> SSlibKey:
        """The public half."""
        return self._public

    @property
    def key_id(self) -> str:
        """The id of the key."""
        return self._public.keyid

    @property
    def public_pem(self) -> str:
        """The public half, as openssl reads it."""
        return str(self._public.keyval["public"])

    def sign(self, payload: bytes) -> Signature:
        """Sign some bytes."""
        made = self._key.sign(payload, ec.ECDSA(hashes.SHA256(), deterministic_signing=True))
        return Signature(self.key_id, made.hex())


def sign(statement: Object, signer: ReceiptSigner) -> bytes:
    """Return the signed receipt: a DSSE envelope, the whole of the file."""
    payload = canonical(statement)
    Statement.copy_from_pb(json_format.Parse(payload, statement_pb2.Statement())).validate()
    envelope = Envelope(payload.encode(), PAYLOAD_TYPE, {})
    envelope.sign(signer)
    # No newline at the end: not one byte of the file may be without meaning.
    return canonical(envelope.to_dict()).encode()


def verifier_of(pem: str) -> tuple[str, Verifier]:
    """Return a public key's id, and what tells its signatures; raises ValueError for what is no key."""
    key = SSlibKey.from_crypto(serialization.load_pem_public_key(pem.encode()))

    def is_by_it(signature: bytes, message: bytes) -> bool:
        try:
            key.verify_signature(Signature(key.keyid, signature.hex()), message)
        except UnverifiedSignatureError:
            return False
        return True

    return key.keyid, is_by_it


class ReceiptKeys:
    """The installation's keys. Read anew for each receipt: those are rare, and a rotation then needs no other word."""

    def __init__(self, cluster: Cluster, namespace: str, given: str = "") -> None:
        """`given` names a Secret that somebody else keeps; it is read, never written."""
        self._cluster = cluster
        self._namespace = namespace
        self._given = given

    async def signer(self) -> ReceiptSigner:
        """Return what signs now; its public key is in the ConfigMap before anything is signed with it."""
        signer = await (self._read_given() if self._given else self._read_or_make())
        await self._announce(signer)
        return signer

    async def verifiers(self) -> Mapping[str, Verifier]:
        """Return the keys that receipts are verified with: all that the ConfigMap has."""
        found = await self._cluster.get("ConfigMap", self._namespace, KEYS_CONFIG_MAP)
        keys = {}
        for file, pem in ((found or {}).get("data") or {}).items():
            try:
                key_id, verifier = verifier_of(pem)
            except (ValueError, TypeError) as error:
                log.warning("ConfigMap %s, %s: no public key, left out: %s", KEYS_CONFIG_MAP, file, error)
                continue
            keys[key_id] = verifier
        return keys

    async def _read_given(self) -> ReceiptSigner:
        where = f"{self._namespace}/{self._given}"
        secret = await self._cluster.get("Secret", self._namespace, self._given)
        if secret is None:
            raise NotFound(404, f"Secret {where} is not there; the chart's receipts.keySecret names it")
        if KEY_FILE not in (secret.get("data") or {}):
            raise KeyUnusable(where, "nothing")
        return signer_in(secret)

    async def _read_or_make(self) -> ReceiptSigner:
        """Read the key, make the first, or follow a rotation; of two replicas that try, one wins and the other reads."""
        for _ in range(TRIES):
            secret = await self._cluster.get("Secret", self._namespace, SECRET)
            has_key = secret is not None and KEY_FILE in (secret.get("data") or {})
            asked = secret is not None and ROTATE_ANNOTATION in (secret["metadata"].get("annotations") or {})
            if secret is not None and has_key and not asked:
                return signer_in(secret)
            if secret is not None and has_key:
                # Receipts that it signed must stay good.
                await self._announce(signer_in(secret))
            new = secret_of(ec.generate_private_key(ec.SECP256R1()), self._namespace, secret)
            try:
                await (self._cluster.replace(new) if secret else self._cluster.create(new))
            except Conflict as error:
                log.info("receipt key: %s; reading again", error)
                continue
            log.info("receipts are signed with a new key from now on, %s", signer_in(new).key_id)
            return signer_in(new)
        raise ClusterError(0, f"Secret {self._namespace}/{SECRET} could neither be read nor written")

    async def _announce(self, signer: ReceiptSigner) -> None:
        """Have the ConfigMap name the key; nothing is ever taken out of it here: removing a key is a person's word."""
        for _ in range(TRIES):
            found = await self._cluster.get("ConfigMap", self._namespace, KEYS_CONFIG_MAP)
            data = (found or {}).get("data") or {}
            file = f"{signer.key_id}.pem"
            if data.get(file) == signer.public_pem:
                return
            meta = {"name": KEYS_CONFIG_MAP, "namespace": self._namespace, "labels": LABELS}
            new = (found or {"metadata": meta}) | {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "data": data | {file: signer.public_pem},
            }
            try:
                await (self._cluster.replace(new) if found else self._cluster.create(new))
            except Conflict as error:
                log.info("receipt keys: %s; reading again", error)
                continue
            return
        raise ClusterError(0, f"ConfigMap {self._namespace}/{KEYS_CONFIG_MAP} could neither be read nor written")


def signer_in(secret: Object) -> ReceiptSigner:
    """Return the key of a Secret; raises KeyUnusable for what can't sign."""
    where = f"{secret['metadata']['namespace']}/{secret['metadata']['name']}"
    try:
        key = serialization.load_pem_private_key(b64decode(secret["data"][KEY_FILE]), None)
    except (ValueError, TypeError) as error:
        raise KeyUnusable(where, f"no unencrypted private key in PEM ({str(error).splitlines()[0]})") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise KeyUnusable(where, type(key).__name__)
    if not isinstance(key.curve, ec.SECP256R1):
        raise KeyUnusable(where, f"a key on {key.curve.name}")
    return ReceiptSigner(key)


def secret_of(key: ec.EllipticCurvePrivateKey, namespace: str, old: Object | None = None) -> Object:
    """Return the Secret that holds a key, in the place of an old one."""
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    meta: Object = {"name": SECRET, "namespace": namespace, "labels": LABELS}
    if old:
        meta["resourceVersion"] = old["metadata"]["resourceVersion"]
    data = {KEY_FILE: b64encode(pem).decode()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": (old or {}).get("type", "Opaque"),
        "metadata": meta,
        "data": data,
    }
