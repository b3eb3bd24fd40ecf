"""Checks a receipt, and says exactly what is wrong: the envelope, the statement, the files, the adapter that it is held to."""

from __future__ import annotations

import binascii
import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import ConfigDict, ValidationError

from halo_api.adapter import CONFIG, AdapterFile, AdapterSpec
from halo_api.base import ApiModel
from halo_api.digests import bytes_digest, canonical
from halo_api.receipt import PAYLOAD_TYPE, Receipt, Statement

# signature, message → whether the one is a key's signature of the other
Verifier = Callable[[bytes, bytes], bool]


class Problem(StrEnum):
    """What can be wrong, in one word."""

    BAD_ENVELOPE = "BadEnvelope"
    WRONG_PAYLOAD_TYPE = "WrongPayloadType"
    UNKNOWN_KEY = "UnknownKey"
    WRONG_SIGNATURE = "WrongSignature"
    BAD_STATEMENT = "BadStatement"
    OTHER_ADAPTER = "OtherAdapter"
    CHANGED = "Changed"
    TRUNCATED = "Truncated"
    MISSING = "Missing"
    EXTRA = "Extra"
    UNVERIFIED = "Unverified"


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: with which file or field, and how."""

    problem: Problem
    where: str
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {self.problem}: {self.message}"


class Flaw(Exception):
    """What ends a check at once: after it, nothing in the receipt can be believed."""

    def __init__(self, problem: Problem, where: str, message: str) -> None:
        super().__init__(message)
        self.finding = Finding(problem, where, message)


class EnvelopeSignature(ApiModel):
    """One signature, and the id of its key."""

    model_config = ConfigDict(extra="forbid")

    keyid: str
    sig: str


class Envelope(ApiModel):
    """A DSSE envelope. What does not belong is refused, not skipped: then there is one way to write it, and it was changed."""

    model_config = ConfigDict(extra="forbid")

    payload: str
    payload_type: str
    signatures: list[EnvelopeSignature]


@dataclass(frozen=True)
class Opened:
    """A receipt whose signature is right, and the id of the key that made it."""

    receipt: Receipt
    key_id: str


def opened(text: bytes, keys: Mapping[str, Verifier]) -> Opened:
    """Return the receipt in an envelope, or raise the Flaw that keeps it from being believed."""
    payload, signatures = unwrapped(text)
    key_id = _signer(payload, signatures, keys)
    return Opened(stated(payload).predicate, key_id)


def unwrapped(text: bytes) -> tuple[bytes, dict[str, bytes]]:
    """Return an envelope's payload and its signatures by key id, none of them verified."""
    try:
        envelope = Envelope.model_validate(json.loads(text, object_pairs_hook=_each_once))
    except ValidationError as error:
        raise Flaw(Problem.BAD_ENVELOPE, "receipt", f"no DSSE envelope: {in_words(error)}") from None
    except ValueError as error:
        raise Flaw(Problem.BAD_ENVELOPE, "receipt", f"no JSON: {error}") from None
    if envelope.payload_type != PAYLOAD_TYPE:
        raise Flaw(
            Problem.WRONG_PAYLOAD_TYPE, "receipt.payloadType", f"found {envelope.payload_type!r}, not {PAYLOAD_TYPE}"
        )
    if not envelope.signatures:
        raise Flaw(Problem.WRONG_SIGNATURE, "receipt.signatures", "found none; a receipt is signed by the operator")
    signatures = {one.keyid: _decoded(one.sig, "receipt.signatures.sig") for one in envelope.signatures}
    return _decoded(envelope.payload, "receipt.payload"), signatures


def stated(payload: bytes) -> Statement:
    """Return the statement in a payload."""
    try:
        found = json.loads(payload, object_pairs_hook=_each_once)
    except ValueError as error:
        raise Flaw(Problem.BAD_STATEMENT, "statement", f"no JSON: {error}") from None
    try:
        return Statement.model_validate(found)
    except ValidationError as error:
        raise Flaw(Problem.BAD_STATEMENT, "statement", in_words(error)) from None


def pae(payload: bytes) -> bytes:
    """Return what a signature is over: the payload with its type and both lengths, DSSE's pre-authentication encoding."""
    kind = PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(payload), payload)


def check_files(receipt: Receipt, found: Iterable[AdapterFile]) -> list[Finding]:
    """Hold the files that are there to those of the receipt, one finding for each that differs."""
    said, here = receipt.adapter.files, tuple(found)
    of = f"the receipt of {subject_of(receipt)}"
    # Of a single file it can't be told: it may be the one that was changed.
    other = len(said) > 1 and not {file.sha256 for file in said} & {file.sha256 for file in here}
    words = f"not one of the {len(said)} files of {of} is here"
    swapped = [Finding(Problem.OTHER_ADAPTER, "receipt", words)] if other else []
    return swapped + differences(said, here, of, or_else=f"{of} is another adapter's")


def differences(said: Iterable[AdapterFile], found: Iterable[AdapterFile], of: str, or_else: str = "") -> list[Finding]:
    """Hold files to those of a list, `of` something; `or_else` is what may have happened if they were not tampered with."""
    there = {file.path: file for file in said}
    here = {file.path: file for file in found}
    doubt = f", or {or_else}" if or_else else ""
    findings = []
    for path in sorted(there | here):
        if path not in here:
            findings.append(Finding(Problem.MISSING, path, f"not found; {of} has it with {there[path].size} bytes"))
        elif path not in there:
            findings.append(Finding(Problem.EXTRA, path, f"found, and {of} has no such file"))
        elif here[path].size < there[path].size:
            sizes = f"found {here[path].size} bytes of {there[path].size}"
            findings.append(Finding(Problem.TRUNCATED, path, f"{sizes}; it was cut{doubt}"))
        elif here[path].sha256 != there[path].sha256:
            digests = f"found {here[path].sha256}, {of} says {there[path].sha256}"
            findings.append(Finding(Problem.CHANGED, path, f"{digests}; it was changed{doubt}"))
    return findings


def check_reference(spec: AdapterSpec, text: bytes) -> list[Finding]:
    """Hold a receipt to the digest by which its Adapter names it."""
    digest = bytes_digest(text)
    if spec.receipt is None or spec.receipt.digest == digest:
        return []
    words = f"found {spec.receipt.digest}, and the receipt has {digest}"
    return [Finding(Problem.OTHER_ADAPTER, "spec.receipt.digest", words)]


def check_adapter(receipt: Receipt, namespace: str, name: str, spec: AdapterSpec) -> list[Finding]:
    """Hold a receipt to the Adapter that carries it: the run, the files, the base and the LoRA must be the same."""
    made = spec.trained_by
    run = (receipt.run.namespace, receipt.run.name, receipt.run.uid)
    if made is None or run != (namespace, made.name, made.uid):
        by = f"made by the run {made.name} ({made.uid})" if made else "imported"
        words = f"it is of {subject_of(receipt)} ({receipt.run.uid}), and Adapter {namespace}/{name} was {by}"
        return [Finding(Problem.OTHER_ADAPTER, "receipt", words)]
    parent = receipt.parent and {"name": receipt.parent.name, "digest": receipt.parent.digest}
    pairs: tuple[tuple[str, Any, Any], ...] = (
        ("digest", spec.digest, receipt.adapter.digest),
        ("base", spec.base.to_json(), {"name": receipt.base.name, "revision": receipt.base.revision}),
        ("rank", spec.rank, receipt.adapter.rank),
        ("alpha", spec.alpha, receipt.adapter.alpha),
        ("mode", spec.mode, receipt.adapter.mode),
        ("parent", spec.parent and spec.parent.to_json(), parent),
    )
    return [_differs(f"spec.{field}", found, said) for field, found, said in pairs if found != said]


def check_config(receipt: Receipt, config: Mapping[str, Any]) -> list[Finding]:
    """Hold a receipt to the adapter's own adapter_config.json."""
    pairs = (
        ("base_model_name_or_path", receipt.base.name),
        ("revision", receipt.base.revision),
        ("r", receipt.adapter.rank),
        ("lora_alpha", receipt.adapter.alpha),
    )
    return [_differs(f"{CONFIG}.{key}", config.get(key), said) for key, said in pairs if config.get(key) != said]


def subject_of(receipt: Receipt) -> str:
    """Return what a receipt is about, in a few words."""
    run = receipt.run
    return f"{run.namespace}/{run.name} after step {receipt.steps.done}"


def in_words(error: ValidationError) -> str:
    """Return the first thing that a model says is wrong."""
    first = error.errors(include_url=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}" if where else str(first["msg"])


def _signer(payload: bytes, signatures: Mapping[str, bytes], keys: Mapping[str, Verifier]) -> str:
    known = sorted(signatures.keys() & keys.keys())
    if not known:
        found, given = ", ".join(sorted(signatures)), ", ".join(sorted(keys)) or "none"
        raise Flaw(
            Problem.UNKNOWN_KEY, "receipt.signatures.keyid", f"found {found}; the keys that are trusted: {given}"
        )
    for key_id in known:
        if keys[key_id](signatures[key_id], pae(payload)):
            return key_id
    words = f"it is no signature of key {known[0]} over this payload: one of the two was changed after it was signed"
    raise Flaw(Problem.WRONG_SIGNATURE, "receipt.signatures.sig", words)


def _decoded(text: str, where: str) -> bytes:
    """Decode strict base64: a lax decoder takes several texts for the same bytes."""
    try:
        data = b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Flaw(Problem.BAD_ENVELOPE, where, f"no base64: {error}") from None
    if b64encode(data).decode() != text:
        raise Flaw(Problem.BAD_ENVELOPE, where, "no base64 as it is written: bits are set that mean nothing")
    return data


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice")
    return found


def _differs(where: str, found: Any, said: Any) -> Finding:
    return Finding(Problem.CHANGED, where, f"found {canonical(found)}, and the receipt says {canonical(said)}")
