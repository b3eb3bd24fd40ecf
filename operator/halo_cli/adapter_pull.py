"""`kubectl halo adapter pull NAME DIR`: an adapter's files, its receipt and the public key, hashed and verified on arrival."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from pydantic import ValidationError

from halo_api.adapter import AdapterFile, AdapterSpec
from halo_api.file_stream import BadStream, bounded, line_of, unpack
from halo_api.receipt import KEY_NAME, KEYS_CONFIG_MAP, RECEIPT_ANNOTATION, RECEIPT_NAME
from halo_api.receipt_check import (
    Finding,
    Flaw,
    Problem,
    check_adapter,
    check_files,
    check_reference,
    differences,
    opened,
    subject_of,
    unwrapped,
)
from halo_api.run_file import claim_of
from halo_cli.kubectl import CliError, Kubectl, NotThere
from halo_cli.receipt import NOT_CHECKED, NOT_VERIFIED, VERIFIED, config_findings, files_in, verifier_of
from halo_cli.volume_pod import Asked, VolumePod, settings_of

Say = Callable[[str], None]

# A connection that ends early is tried again, as long as each try brings a whole file more.
TRIES = 4
PROVES_NOTHING = (
    f"{KEY_NAME} came from this cluster with the files, so that it proves nothing to whom you hand them on: "
    "they take the key from a place that they trust, and run kubectl halo receipt verify --offline --key FILE"
)


@dataclass(frozen=True)
class Verdict:
    """What there is to say of what was pulled, and why more can't be said."""

    words: tuple[str, ...] = ()
    unsure: str | None = None


class Wrong(Exception):
    """What was found is not what was published."""

    def __init__(self, findings: list[Finding]) -> None:
        super().__init__()
        self.findings = findings


@dataclass(frozen=True)
class Wanted:
    """What is to be pulled: the Adapter, its receipt, and the public keys that its signatures name."""

    body: Mapping[str, Any]
    spec: AdapterSpec
    receipt: bytes | None
    keys: Mapping[str, str] = field(default_factory=dict)
    no_keys: str | None = None

    @property
    def beside(self) -> dict[str, bytes]:
        """What is written beside the files."""
        key = "".join(self.keys[key_id] for key_id in sorted(self.keys)).encode()
        found = {RECEIPT_NAME: self.receipt, KEY_NAME: key or None}
        return {name: data for name, data in found.items() if data is not None}


def pull(kubectl: Kubectl, name: str, folder: Path, asked: Asked, say: Say, note: Say) -> int:
    """Pull; return 0 if all is as it was published, 1 if something is wrong, 2 if it can't be told."""
    try:
        wanted = wanted_of(kubectl, name, asked.system)
        there = found_in(folder, wanted)
        if there is not None:
            verdict = verdict_of(wanted, folder, there)
            say(f"already there: {len(there)} files in {folder}")
        else:
            with partial(folder) as temporary:
                fetch(kubectl, wanted, temporary, asked, note)
                for path, data in wanted.beside.items():
                    (temporary / path).write_bytes(data)
                verdict = verdict_of(wanted, temporary, files_in(temporary))
                temporary.replace(folder)
            size = sum(file.size for file in wanted.spec.files)
            say(f"pulled: {len(wanted.spec.files)} files, {size} bytes, to {folder}")
    except Wrong as wrong:
        for finding in wrong.findings:
            say(f"NOT VERIFIED  {finding}")
        note("not pulled: what was found is not what was published")
        return NOT_VERIFIED
    except CliError as error:
        note(f"not pulled: {error}")
        return NOT_CHECKED
    for line in verdict.words:
        say(line)
    if verdict.unsure:
        note(f"its receipt was not checked: {verdict.unsure}")
        return NOT_CHECKED
    return VERIFIED


def wanted_of(kubectl: Kubectl, name: str, system: str) -> Wanted:
    """Ask the cluster what there is to pull."""
    try:
        body = kubectl.get("adapters.halo.training", name)
    except NotThere:
        raise kubectl.absent("Adapter", name, "adapters") from None
    try:
        spec = AdapterSpec.model_validate(body["spec"])
        bounded(spec.files)
    except (ValidationError, BadStream) as error:
        raise CliError(f"Adapter {name}, spec: {error}") from None
    text = (body["metadata"].get("annotations") or {}).get(RECEIPT_ANNOTATION)
    if text is None:
        if spec.receipt:
            raise Wrong([Finding(Problem.MISSING, "receipt", f"the Adapter has lost it, {spec.receipt.digest}")])
        return Wanted(body, spec, None)
    receipt = text.encode()
    try:
        signers = set(unwrapped(receipt)[1])
    except Flaw as flaw:
        raise Wrong([flaw.finding]) from None
    try:
        data = kubectl.get("configmap", KEYS_CONFIG_MAP, "--namespace", system).get("data") or {}
    except CliError as error:
        return Wanted(body, spec, receipt, no_keys=f"ConfigMap {KEYS_CONFIG_MAP} of namespace {system}: {error}")
    keys = {file.removesuffix(".pem"): pem for file, pem in data.items()}
    return Wanted(body, spec, receipt, {key_id: keys[key_id] for key_id in signers & keys.keys()})


def found_in(folder: Path, wanted: Wanted) -> list[AdapterFile] | None:
    """Return the files of a folder that has just what would be pulled, or None if it is still to be made."""
    if not folder.exists() and not folder.is_symlink():
        return None
    if not folder.is_dir() or folder.is_symlink():
        raise CliError(f"{folder}: found what is no folder; name a new one")
    if not any(folder.iterdir()):
        return None
    there = files_in(folder)
    beside = {name: (folder / name).read_bytes() for name in (RECEIPT_NAME, KEY_NAME) if (folder / name).is_file()}
    if beside != wanted.beside or differences(wanted.spec.files, there, "the Adapter"):
        raise CliError(f"{folder}: found other files in it; name a new folder, or remove it")
    return there


@contextlib.contextmanager
def partial(folder: Path) -> Iterator[Path]:
    """Yield a folder beside the one that it is to become; nothing of it is left unless it was renamed."""
    target = folder.absolute()
    temporary = target.with_name(f".{target.name}.partial-{secrets.token_hex(4)}")
    try:
        temporary.mkdir(parents=True)
        yield temporary
    except OSError as error:
        raise CliError(f"{error.filename or folder}: can't be written: {error.strerror}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def fetch(kubectl: Kubectl, wanted: Wanted, folder: Path, asked: Asked, note: Say) -> None:
    """Have a pod send the files, and hash what arrives; raises Wrong if what lies on the claim is not what was published."""
    spec = wanted.spec
    with VolumePod(kubectl, settings_of(kubectl, asked), {claim_of(spec.uri): True}, asked.timeout, note) as pod:
        left = list(spec.files)
        for _ in range(TRIES):
            still = left_after(pod, spec.uri, left, folder)
            if not still:
                return
            # Was it the way here, or is it the claim?
            there = [AdapterFile.model_validate(file) for file in json.loads(pod.ask("list", "--source", spec.uri))]
            named = {file.path for file in spec.files}
            wrong = differences(
                spec.files, (f for f in there if f.path in named), f"Adapter {wanted.body['metadata']['name']}"
            )
            if wrong:
                raise Wrong(wrong)
            if len(still) == len(left):
                break
            left = still
        raise CliError(f"the connection to the pod ended early before {left[0].path} was here; try again")


def left_after(pod: VolumePod, uri: str, wanted: list[AdapterFile], folder: Path) -> list[AdapterFile]:
    """Receive files; return those that did not arrive whole."""
    left = {file.path: file for file in wanted}

    def keep(file: AdapterFile, data: IO[bytes]) -> None:
        if write(folder / file.path, data) == file.sha256:
            del left[file.path]

    with contextlib.suppress(BadStream), pod.process("send", "--source", uri) as pipes:
        pipes.stdin.write(line_of(wanted))
        pipes.stdin.close()
        unpack(pipes.stdout, wanted, keep)
    return list(left.values())


def write(path: Path, data: IO[bytes]) -> str:
    """Write a file, have it on the disk, and return the digest of what was written."""
    digest = hashlib.sha256()
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        while block := data.read(1 << 20):
            digest.update(block)
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    return f"sha256:{digest.hexdigest()}"


def verdict_of(wanted: Wanted, folder: Path, there: list[AdapterFile]) -> Verdict:
    """Hold what arrived to the Adapter, and to its receipt by the key beside it; raises Wrong."""
    spec, meta = wanted.spec, wanted.body["metadata"]
    if findings := differences(spec.files, there, f"Adapter {meta['name']}"):
        raise Wrong(findings)
    if wanted.receipt is None:
        made = spec.trained_by
        same = f"the files are those of the Adapter, {spec.digest}"
        return Verdict(
            (f"no receipt: {'a run made it' if made else 'it was imported'}; {same}",),
            f"Adapter {meta['name']} has none, though the run {made.name} made it" if made else None,
        )
    try:
        if wanted.no_keys:
            raise CliError(wanted.no_keys)
        keys = dict(verifier_of(pem, f"key {key_id}") for key_id, pem in wanted.keys.items())
    except CliError as error:
        return Verdict((), str(error))
    try:
        found = opened(wanted.receipt, keys)
    except Flaw as flaw:
        raise Wrong([flaw.finding]) from None
    findings = [
        *check_adapter(found.receipt, meta["namespace"], meta["name"], spec),
        *check_reference(spec, wanted.receipt),
        *check_files(found.receipt, there),
        *config_findings(found.receipt, folder),
    ]
    if findings:
        raise Wrong(findings)
    words = f"verified: {subject_of(found.receipt)}, {len(there)} files, signed by key {found.key_id}"
    return Verdict((words, PROVES_NOTHING))
