"""The key that receipts are signed by: made once, given, rotated; every public one stays known."""

from __future__ import annotations

import copy
from base64 import b64decode, b64encode

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from securesystemslib.dsse import Envelope
from securesystemslib.signer import SSlibKey

from halo_api.receipt import KEYS_CONFIG_MAP, PAYLOAD_TYPE
from halo_api.receipt_check import Flaw, Problem, opened, pae, unwrapped
from halo_cli.receipt import verifier_of as verifier_of_the_command_line
from halo_operator.cluster import AlreadyExists, Conflict, NotFound, Object
from halo_operator.signing import ROTATE_ANNOTATION, SECRET, KeyUnusable, ReceiptKeys, sign, signer_in, verifier_of
from tests.unit.builders_receipt import KEY, statement


class Store:
    """An API server's storage: names are taken once, and a write with an old resourceVersion is refused."""

    def __init__(self) -> None:
        self.objects: dict[tuple[str, str, str], Object] = {}
        self.writes: list[str] = []

    async def get(self, kind: str, namespace: str, name: str) -> Object | None:
        return copy.deepcopy(self.objects.get((kind, namespace, name)))

    async def create(self, body: Object) -> None:
        if self.key(body) in self.objects:
            raise AlreadyExists(409, "taken")
        self.put(body)

    async def replace(self, body: Object) -> None:
        if self.objects[self.key(body)]["metadata"]["resourceVersion"] != body["metadata"].get("resourceVersion"):
            raise Conflict(409, "changed")
        self.put(body)

    def key(self, body: Object) -> tuple[str, str, str]:
        return body["kind"], body["metadata"]["namespace"], body["metadata"]["name"]

    def put(self, body: Object) -> None:
        self.writes.append(body["kind"])
        meta = body["metadata"] | {"resourceVersion": str(len(self.writes))}
        self.objects[self.key(body)] = copy.deepcopy(body) | {"metadata": meta}

    def secret(self, name: str = SECRET) -> Object:
        return self.objects["Secret", "halo-system", name]

    @property
    def public(self) -> dict[str, str]:
        return dict(self.objects["ConfigMap", "halo-system", KEYS_CONFIG_MAP]["data"])


def keys(store: Store, given: str = "") -> ReceiptKeys:
    return ReceiptKeys(store, "halo-system", given)  # type: ignore[arg-type]


def give(store: Store, pem: bytes, name: str = "mine") -> None:
    meta = {"name": name, "namespace": "halo-system"}
    store.put({"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": {"key.pem": b64encode(pem).decode()}})


def pem_of(key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


async def test_the_first_receipt_makes_the_key_and_the_next_one_takes_it() -> None:
    store = Store()
    first = await keys(store).signer()
    again = await keys(store).signer()
    assert first.key_id == again.key_id
    assert store.public == {f"{first.key_id}.pem": first.public_pem}
    assert store.writes == ["Secret", "ConfigMap"]
    assert b"PRIVATE" not in str(store.public).encode()


async def test_of_two_replicas_that_make_it_one_wins_and_both_sign_with_it() -> None:
    store = Store()

    class Slow(Store):
        async def get(self, kind: str, namespace: str, name: str) -> Object | None:
            found = await store.get(kind, namespace, name)
            if not raced:
                raced.append(kind)
                await keys(store).signer()
            return found

        async def create(self, body: Object) -> None:
            await store.create(body)

    raced: list[str] = []
    late = await keys(Slow()).signer()
    assert signer_in(store.secret()).key_id == late.key_id
    assert len(store.public) == 1


async def test_a_rotation_signs_with_a_new_key_and_old_receipts_stay_good() -> None:
    store = Store()
    before = await keys(store).signer()
    old = sign(statement(), before)
    store.secret()["metadata"]["annotations"] = {ROTATE_ANNOTATION: "now"}
    after = await keys(store).signer()
    assert after.key_id != before.key_id
    assert "annotations" not in store.secret()["metadata"]
    assert (await keys(store).signer()).key_id == after.key_id
    trusted = await keys(store).verifiers()
    assert opened(old, trusted).key_id == before.key_id
    assert opened(sign(statement(), after), trusted).key_id == after.key_id


async def test_a_key_that_a_person_takes_out_is_not_trusted_any_more() -> None:
    store = Store()
    old = sign(statement(), await keys(store).signer())
    store.secret()["metadata"]["annotations"] = {ROTATE_ANNOTATION: "stolen"}
    await keys(store).signer()
    data = store.objects["ConfigMap", "halo-system", KEYS_CONFIG_MAP]["data"]
    del data[next(iter(data))]
    await keys(store).signer()
    with pytest.raises(Flaw) as caught:
        opened(old, await keys(store).verifiers())
    assert caught.value.finding.problem == Problem.UNKNOWN_KEY


async def test_a_given_key_is_used_and_never_written() -> None:
    store = Store()
    give(store, pem_of(ec.generate_private_key(ec.SECP256R1())))
    store.secret("mine")["metadata"]["annotations"] = {ROTATE_ANNOTATION: "now"}
    signer = await keys(store, "mine").signer()
    assert signer.key_id == signer_in(store.secret("mine")).key_id
    assert store.writes == ["Secret", "ConfigMap"]
    assert ("Secret", "halo-system", SECRET) not in store.objects


@pytest.mark.parametrize(
    ("pem", "found"),
    [
        (b"no key", "found no unencrypted private key in PEM"),
        (pem_of(rsa.generate_private_key(65537, 2048)), "found RSAPrivateKey"),
        (pem_of(ec.generate_private_key(ec.SECP384R1())), "found a key on secp384r1"),
    ],
    ids=["text", "rsa", "p384"],
)
async def test_a_key_that_can_not_sign_is_named_and_kept(pem: bytes, found: str) -> None:
    store = Store()
    give(store, pem, SECRET)
    with pytest.raises(KeyUnusable, match=f"Secret halo-system/{SECRET}, key.pem: {found}"):
        await keys(store).signer()
    assert b64decode(store.secret()["data"]["key.pem"]) == pem


async def test_a_given_secret_that_is_not_there_is_waited_for() -> None:
    with pytest.raises(NotFound, match="Secret halo-system/mine is not there"):
        await keys(Store(), "mine").signer()


async def test_what_is_no_key_in_the_config_map_is_left_out() -> None:
    store = Store()
    signer = await keys(store).signer()
    store.objects["ConfigMap", "halo-system", KEYS_CONFIG_MAP]["data"]["note"] = "hello"
    assert set(await keys(store).verifiers()) == {signer.key_id}


def test_a_receipt_that_is_signed_again_is_the_same_file() -> None:
    assert sign(statement(), KEY) == sign(statement(), KEY)


def test_what_is_no_statement_is_not_signed() -> None:
    with pytest.raises(ValueError, match="digest"):
        sign(statement() | {"subject": [{"name": "a", "digest": {}}]}, KEY)


def test_all_readers_agree_on_the_key_and_on_what_is_signed() -> None:
    envelope = sign(statement(), KEY)
    payload, _ = unwrapped(envelope)
    ours, theirs = verifier_of(KEY.public_pem), verifier_of_the_command_line(KEY.public_pem, "key")
    foreign = SSlibKey.from_crypto(serialization.load_pem_public_key(KEY.public_pem.encode()))  # type: ignore[arg-type]
    assert ours[0] == theirs[0] == foreign.keyid == KEY.key_id
    assert Envelope(payload, PAYLOAD_TYPE, {}).pae() == pae(payload)
