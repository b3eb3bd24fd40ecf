"""`kubectl halo receipt show` and `verify`: how an adapter came to be, and whether that, and its files, are what was signed."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halo_api.adapter import CONFIG, AdapterFile, AdapterSpec
from halo_api.digests import bytes_digest
from halo_api.receipt import KEY_NAME, KEYS_CONFIG_MAP, RECEIPT_ANNOTATION, RECEIPT_NAME, Receipt, Statement
from halo_api.receipt_check import (
    Finding,
    Flaw,
    Problem,
    Verifier,
    check_adapter,
    check_config,
    check_files,
    check_reference,
    opened,
    stated,
    subject_of,
    unwrapped,
)
from halo_cli.kubectl import CliError, Kubectl, NotThere

VERIFIED, NOT_VERIFIED, NOT_CHECKED = 0, 1, 2
PEM = re.compile(r"-----BEGIN PUBLIC KEY-----.*?-----END PUBLIC KEY-----", re.S)


@dataclass(frozen=True)
class Asked:
    """What is to be verified, and by which keys."""

    where: str
    receipt: str | None = None
    keys: tuple[str, ...] = ()
    offline: bool = False
    system: str = "halo-system"


class Target:
    """A folder, or an Adapter of the cluster, with the receipt's text.

    What has a / in it is a folder; a bare name is an Adapter's, also where a folder of that name lies here: else whoever
    pulled an adapter would be told of the copy when they ask for the original. Offline, and with a receipt, it is a folder.
    """

    def __init__(self, kubectl: Kubectl, where: str, receipt: str | None = None, offline: bool = False) -> None:
        self.folder = Path(where) if offline or receipt or "/" in where or where.startswith(".") else None
        self.body: dict[str, Any] = {}
        if self.folder and not self.folder.is_dir():
            only = ", and --offline looks at nothing else" if offline else ""
            raise CliError(f"{where}: no such folder{only}")
        if self.folder:
            self.text = read(Path(receipt) if receipt else self.folder / RECEIPT_NAME)
        else:
            try:
                self.body = adapter(kubectl, where)
            except CliError as error:
                folder = f"; for the folder write ./{where}" if Path(where).is_dir() else ""
                raise CliError(f"{error}{folder}") from None
            text = (self.body["metadata"].get("annotations") or {}).get(RECEIPT_ANNOTATION)
            if text is None:
                raise CliError(f"Adapter {where} has no receipt: it was imported, or published without one")
            self.text = text.encode()

    def findings(self, receipt: Receipt) -> list[Finding]:
        """Hold what is there to its receipt."""
        if self.folder:
            return [*check_files(receipt, files_in(self.folder)), *config_findings(receipt, self.folder)]
        meta, spec = self.body["metadata"], AdapterSpec.model_validate(self.body["spec"])
        found = check_adapter(receipt, meta["namespace"], meta["name"], spec)
        return found or check_reference(spec, self.text)

    @property
    def rehashed(self) -> tuple[str, str]:
        """What the operator found when it hashed the files of an Adapter again: True, False or Unknown, and why."""
        conditions = (self.body.get("status") or {}).get("conditions") or []
        said = next((c for c in conditions if c["type"] == "Verified"), None)
        return (said["status"], said["message"]) if said else ("Unknown", "nobody has hashed them again yet")


def show(kubectl: Kubectl, where: str, receipt: str | None, as_json: bool, say: Callable[[str], None]) -> int:
    """Print what a receipt says, verified or not."""
    target = Target(kubectl, where, receipt)
    try:
        payload, signatures = unwrapped(target.text)
        statement = stated(payload)
    except Flaw as flaw:
        raise CliError(str(flaw.finding)) from None
    if as_json:
        say(json.dumps(json.loads(payload), indent=2))
        return 0
    for line in lines(statement, list(signatures)):
        say(line)
    return 0


def verify(kubectl: Kubectl, asked: Asked, say: Callable[[str], None], note: Callable[[str], None]) -> int:
    """Check signature, statement and files; return 0 if all is right, 1 if something is wrong, 2 if it can't be told."""
    try:
        return verdict(kubectl, asked, say)
    except CliError as error:
        note(f"not checked: {error}")
        return NOT_CHECKED


def verdict(kubectl: Kubectl, asked: Asked, say: Callable[[str], None]) -> int:
    """Say what is wrong, or that nothing is; raises CliError if it can't be told."""
    if asked.offline and not asked.keys:
        raise CliError(
            "--offline needs --key FILE, a public key from a place that you trust: one that came with the files proves nothing"
        )
    target = Target(kubectl, asked.where, asked.receipt, asked.offline)
    keys = keys_of_files(asked.keys) if asked.keys else keys_of_cluster(kubectl, asked.system)
    try:
        found = opened(target.text, keys)
        findings = target.findings(found.receipt)
    except Flaw as flaw:
        findings = [flaw.finding]
    if not findings and not target.folder:
        said, why = target.rehashed
        if said == "False":
            findings = [Finding(Problem.UNVERIFIED, "files", f"the operator hashed them again: {why}")]
        elif said != "True":
            raise CliError(
                f"the receipt is right, but its files are not verified: {why}; pull the adapter and verify its folder"
            )
    for finding in findings:
        say(f"NOT VERIFIED  {finding}")
    if findings:
        return NOT_VERIFIED
    say(
        f"verified: {subject_of(found.receipt)}, {len(found.receipt.adapter.files)} files, signed by key {found.key_id}"
    )
    return VERIFIED


def lines(statement: Statement, key_ids: Sequence[str]) -> list[str]:
    """Return a receipt as a person reads it."""
    said = statement.predicate
    used, settlement = said.usage.used, said.usage.used and said.usage.used.settlement
    parent = f"{said.parent.name} {said.parent.digest}, receipt {said.parent.receipt}" if said.parent else "none"
    rows = [
        ("run", f"{said.run.kind} {said.run.namespace}/{said.run.name} ({said.run.uid}), attempt {said.run.attempt}"),
        ("recipe", f"{said.recipe.name} {said.recipe.file.digest if said.recipe.file else said.recipe.digest}"),
        (
            "base",
            ", ".join(
                filter(None, (f"{said.base.name} at {said.base.revision}", said.base.dtype, said.base.quantization))
            ),
        ),
        ("parent", parent),
        *(("data", f"{data.name} {data.sha256}, {data.rows} rows") for data in said.datasets),
        *(("environment", f"{e.name}: {e.package} {e.revision}, for {e.use}") for e in said.environments),
        ("steps", f"{said.steps.done} of {said.steps.asked}, seed {said.seed}"),
        ("metrics", json.dumps(said.metrics.to_json())),
        ("adapter", f"{said.adapter.digest}, rank {said.adapter.rank}, alpha {said.adapter.alpha:g}"),
        *(("file", f"{file.path} {file.sha256}, {file.size} bytes") for file in said.adapter.files),
        *(("image", f"{role}: {image}") for role, images in sorted(said.images.items()) for image in images),
        ("times", ", ".join(f"{name} {when}" for name, when in said.times.to_json().items())),
    ]
    if used:
        rows.append(("used", f"{used.h100_hours} H100-hours" + (f", {used.usd} USD" if used.usd else "")))
    if settlement:
        words = f"quoted {settlement.quoted}, held {settlement.held}, used {settlement.used}"
        rows.append(("charged", f"{settlement.charged} {settlement.unit} ({words})"))
    rows += [("operator", said.operator.version), ("signed by", ", ".join(key_ids) + " (not verified here)")]
    return [f"{name:<12}{text}" for name, text in rows]


def adapter(kubectl: Kubectl, name: str) -> dict[str, Any]:
    """Return an Adapter of the cluster."""
    try:
        return kubectl.get("adapters.halo.training", name)
    except NotThere:
        words = f"there is no folder {name}, and no Adapter of that name in namespace {kubectl.namespace()}"
        raise CliError(words) from None


def read(file: Path) -> bytes:
    """Return the bytes of a file."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise CliError(f"{file}: can't be read: {error.strerror}") from None


def files_in(folder: Path) -> list[AdapterFile]:
    """Hash every file below a folder but the receipt and the key; a link to a folder counts as a file that does not belong."""
    found = []
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name in (RECEIPT_NAME, KEY_NAME) or (path.is_dir() and not path.is_symlink()):
            continue
        if path.is_file():
            try:
                with path.open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
            except OSError as error:
                raise CliError(f"{path}: can't be read: {error.strerror}") from None
            found.append(AdapterFile.model_construct(path=name, sha256=f"sha256:{digest}", size=path.stat().st_size))
        else:
            found.append(AdapterFile.model_construct(path=name, sha256="", size=0))
    return found


def config_findings(receipt: Receipt, folder: Path) -> list[Finding]:
    """Hold the receipt to the adapter's own configuration, if that is the file that was signed."""
    signed = {file.path: file.sha256 for file in receipt.adapter.files}
    try:
        text = (folder / CONFIG).read_bytes()
    except OSError:
        return []
    if signed.get(CONFIG) != bytes_digest(text):
        return []
    return check_config(receipt, json.loads(text))


def keys_of_files(files: Sequence[str]) -> Mapping[str, Verifier]:
    """Return the public keys in PEM files, by their ids."""
    found: dict[str, Verifier] = {}
    for file in files:
        pems = PEM.findall(read(Path(file)).decode(errors="replace"))
        if not pems:
            raise CliError(f"{file}: found no public key in PEM (-----BEGIN PUBLIC KEY-----)")
        found |= dict(verifier_of(pem, file) for pem in pems)
    return found


def keys_of_cluster(kubectl: Kubectl, system: str) -> Mapping[str, Verifier]:
    """Return the public keys that the operator has signed with."""
    try:
        body = kubectl.get("configmap", KEYS_CONFIG_MAP, "--namespace", system)
    except NotThere:
        raise CliError(
            f"there is no ConfigMap {KEYS_CONFIG_MAP} in namespace {system}; name the operator's with --system-namespace, or a key with --key"
        ) from None
    return dict(
        verifier_of(pem, f"ConfigMap {KEYS_CONFIG_MAP}, {name}") for name, pem in (body.get("data") or {}).items()
    )


def verifier_of(pem: str, where: str) -> tuple[str, Verifier]:
    """Return a public key's id, as securesystemslib derives it, and what tells its signatures."""
    try:
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise CliError(
            "verifying takes the package cryptography, which the extra verify of this package brings"
        ) from None
    try:
        key = serialization.load_pem_public_key(pem.encode())
    except ValueError as error:
        raise CliError(f"{where}: no public key in PEM: {str(error).splitlines()[0]}") from None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1):
        raise CliError(f"{where}: found {type(key).__name__}; receipts are signed by ECDSA P-256")
    info = serialization.PublicFormat.SubjectPublicKeyInfo
    public = key.public_bytes(serialization.Encoding.PEM, info).decode()
    # Its canonical JSON leaves a newline as it is.
    named = f'{{"keytype":"ecdsa","keyval":{{"public":"{public}"}},"scheme":"ecdsa-sha2-nistp256"}}'

    def is_by_it(signature: bytes, message: bytes) -> bool:
        try:
            key.verify(signature, message, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            return False
        return True

    return hashlib.sha256(named.encode()).hexdigest(), is_by_it
