"""Whatever is done to an adapter or its receipt is caught, and said to be what it is."""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from securesystemslib.dsse import Envelope

from halo_api.digests import canonical
from halo_api.receipt_check import (
    Finding,
    Flaw,
    Problem,
    check_adapter,
    check_config,
    check_files,
    opened,
    subject_of,
)
from halo_operator.signing import sign, verifier_of
from tests.unit.builders_receipt import KEY, OTHER_KEY, adapter, contents, files, statement

KEYS = dict([verifier_of(KEY.public_pem)])
RECEIPT = sign(statement(), KEY)
P = Problem


def checked(found: dict[str, bytes], receipt: bytes = RECEIPT) -> list[Finding]:
    """All that is wrong with files and their receipt."""
    try:
        return check_files(opened(receipt, KEYS).receipt, files(found))
    except Flaw as flaw:
        return [flaw.finding]


def problems(found: dict[str, bytes], receipt: bytes = RECEIPT) -> list[tuple[str, Problem]]:
    return [(one.where, one.problem) for one in checked(found, receipt)]


def enveloped(change: Callable[[dict[str, Any]], object]) -> bytes:
    """The receipt with something done to its envelope."""
    found = json.loads(RECEIPT)
    change(found)
    return canonical(found).encode()


def test_what_was_signed_is_found_right() -> None:
    assert checked(contents()) == []
    assert opened(RECEIPT, KEYS).key_id == KEY.key_id


@given(st.sampled_from(sorted(contents())), st.integers(0, 10**6), st.integers(1, 255))
def test_any_byte_of_any_file(path: str, at: int, flip: int) -> None:
    found = contents()
    data = bytearray(found[path])
    data[at % len(data)] ^= flip
    assert problems(found | {path: bytes(data)}) == [(path, P.CHANGED)]


@given(st.integers(0, len(RECEIPT) - 1), st.integers(1, 255))
def test_any_byte_of_the_receipt(at: int, flip: int) -> None:
    changed = bytearray(RECEIPT)
    changed[at] ^= flip
    (found,) = checked(contents(), bytes(changed))
    assert found.problem in {P.BAD_ENVELOPE, P.WRONG_PAYLOAD_TYPE, P.UNKNOWN_KEY, P.WRONG_SIGNATURE}


@given(st.data(), st.integers(1, 255))
def test_any_byte_of_the_signed_payload(data: st.DataObject, flip: int) -> None:
    envelope = json.loads(RECEIPT)
    payload = bytearray(b64decode(envelope["payload"]))
    payload[data.draw(st.integers(0, len(payload) - 1))] ^= flip
    envelope["payload"] = b64encode(payload).decode()
    assert problems(contents(), canonical(envelope).encode()) == [("receipt.signatures.sig", P.WRONG_SIGNATURE)]


def test_two_receipts_that_were_swapped_are_named_by_the_runs_that_they_are_of() -> None:
    one, other = contents(1), contents(2)
    swapped = sign(statement(2, "other", "uid-2"), KEY)
    for found, receipt, of in ((one, swapped, "team/other"), (other, RECEIPT, "team/run")):
        said = checked(found, receipt)
        assert {(f.where, f.problem) for f in said} == {
            ("adapter_model.safetensors", P.CHANGED),
            ("tokenizer/vocab.txt", P.CHANGED),
        }
        assert all(f"the receipt of {of} after step 100" in f.message for f in said)
        assert all("another adapter's" in f.message for f in said)


def test_a_receipt_that_fits_not_one_file_is_another_adapters() -> None:
    strange = {path: data + b"x" for path, data in contents(3).items()}
    assert checked(strange)[0].problem == P.OTHER_ADAPTER


def test_missing_extra_and_cut_files_are_told_apart() -> None:
    found = contents()
    cut = found | {"adapter_model.safetensors": found["adapter_model.safetensors"][:-1], "pickle.bin": b""}
    del cut["tokenizer/vocab.txt"]
    assert problems(cut) == [
        ("adapter_model.safetensors", P.TRUNCATED),
        ("pickle.bin", P.EXTRA),
        ("tokenizer/vocab.txt", P.MISSING),
    ]
    assert "found 199 bytes of 200" in checked(cut)[0].message


SLSA = canonical(statement() | {"predicateType": "https://slsa.dev/provenance/v1"})
STEPLESS = canonical(statement() | {"predicate": {k: v for k, v in statement()["predicate"].items() if k != "steps"}})


def signed_text(payload: str) -> bytes:
    """A good signature over anything."""
    envelope = Envelope(payload.encode(), "application/vnd.in-toto+json", {})
    envelope.sign(KEY)
    return canonical(envelope.to_dict()).encode()


@pytest.mark.parametrize(
    ("receipt", "where", "problem", "says"),
    [
        (sign(statement(), OTHER_KEY), "receipt.signatures.keyid", P.UNKNOWN_KEY, OTHER_KEY.key_id),
        (
            enveloped(
                lambda e: e["signatures"][0].update(sig=json.loads(sign(statement(2), KEY))["signatures"][0]["sig"])
            ),
            "receipt.signatures.sig",
            P.WRONG_SIGNATURE,
            KEY.key_id,
        ),
        (enveloped(lambda e: e.update(signatures=[])), "receipt.signatures", P.WRONG_SIGNATURE, "found none"),
        (
            enveloped(lambda e: e.update(payloadType="text/plain")),
            "receipt.payloadType",
            P.WRONG_PAYLOAD_TYPE,
            "text/plain",
        ),
        (enveloped(lambda e: e.update(note="hi")), "receipt", P.BAD_ENVELOPE, "note"),
        (RECEIPT[:-20], "receipt", P.BAD_ENVELOPE, "no JSON"),
        (b"\xff", "receipt", P.BAD_ENVELOPE, "no JSON"),
        (RECEIPT.replace(b'{"payload":', b'{"payload":"","payload":'), "receipt", P.BAD_ENVELOPE, "stands twice"),
        (signed_text(SLSA), "statement", P.BAD_STATEMENT, "predicateType"),
        (signed_text(STEPLESS), "statement", P.BAD_STATEMENT, "predicate.steps"),
        (signed_text("[]"), "statement", P.BAD_STATEMENT, "dictionary"),
    ],
    ids=lambda value: value if isinstance(value, Problem) else None,
)
def test_a_receipt_that_is_none(receipt: bytes, where: str, problem: Problem, says: str) -> None:
    (found,) = checked(contents(), receipt)
    assert (found.where, found.problem) == (where, problem)
    assert says in found.message


def test_a_receipt_is_held_to_the_adapter_that_carries_it() -> None:
    receipt = opened(RECEIPT, KEYS).receipt
    own = adapter(contents())
    assert check_adapter(receipt, "team", "run", own) == []
    for namespace, spec in (("other", own), ("team", adapter(contents(), uid="uid-2"))):
        (found,) = check_adapter(receipt, namespace, "run", spec)
        assert found.problem == P.OTHER_ADAPTER
        assert subject_of(receipt) in found.message
    changed = own.model_copy(update={"rank": 8, "digest": files(contents(2))[0].sha256})
    assert [f.where for f in check_adapter(receipt, "team", "run", changed)] == ["spec.digest", "spec.rank"]


def test_a_receipt_is_held_to_the_adapters_own_configuration() -> None:
    receipt = opened(RECEIPT, KEYS).receipt
    config = json.loads(contents()["adapter_config.json"])
    assert check_config(receipt, config) == []
    (found,) = check_config(receipt, config | {"r": 8})
    assert str(found) == "adapter_config.json.r: Changed: found 8, and the receipt says 16"
