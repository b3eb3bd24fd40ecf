"""`kubectl halo adapter import DIR|pvc://CLAIM/PATH`: an Adapter of a LoRA from outside, that no run made and no receipt proves."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pydantic import TypeAdapter, ValidationError

from halo_api import API_VERSION
from halo_api.adapter import CONFIG, AdapterBase, AdapterFile, AdapterSpec
from halo_api.base import DNS_NAME, VolumeUri
from halo_api.digests import files_digest
from halo_api.file_stream import line_of, pack
from halo_api.labels import IMPORTED, ORIGIN_LABEL
from halo_api.peft import Folder, Lora, Misfit, looked_at, lora_of
from halo_api.run_file import adapters_uri, address, claim_of
from halo_cli.kubectl import CliError, Kubectl, NotThere, Object
from halo_cli.volume_pod import Asked, Settings, VolumePod, create, settings_of

# Branches, which are no revision: what they name changes.
BRANCHES = ("main", "master", "HEAD")

Say = Callable[[str], None]


@dataclass(frozen=True)
class Source:
    """What is to be imported, under which name, and what is said of it beside its own words."""

    where: str
    name: str
    base: str | None = None
    revision: str | None = None
    claim: str | None = None

    @property
    def on_claim(self) -> str | None:
        """The claim that it lies on already."""
        return claim_of(self.where) if self.where.startswith("pvc://") else None


def import_adapter(kubectl: Kubectl, source: Source, asked: Asked, say: Say, note: Say) -> int:
    """Look at the folder, copy it to where adapters lie, and make the Adapter; whatever goes wrong leaves nothing behind."""
    check_name(kubectl, source)
    catalog = kubectl.get("basemodels.halo.training")["items"]
    found = None if source.on_claim else checked(look, Path(source.where), source.where)
    settings = settings_of(kubectl, asked)
    store = adapters_uri(claim_for(kubectl, source, settings))
    body = adapter_of(kubectl, source, catalog, found, store, note) if found else None
    claims = {source.on_claim: True} if source.on_claim else {}
    scratch = sum(file.size for file in found.files) if found else 0
    with VolumePod(kubectl, settings, claims | {claim_of(store): False}, asked.timeout, note, scratch) as pod:
        if found is None or body is None:
            found = Folder.model_validate_json(pod.ask("look", "--source", source.where))
            body = adapter_of(kubectl, source, catalog, found, store, note)
        keep(pod, kubectl, source, found, body, store)
    spec = body["spec"]
    size = sum(file.size for file in found.files)
    say(f"imported: Adapter {source.name}, {len(found.files)} files, {size} bytes, at {spec['uri']}")
    base, rank = spec["base"], spec["rank"]
    say(f"base {base['name']} at {base['revision']}, rank {rank}, alpha {spec['alpha']:g}")
    say("no run made it and it has no receipt: it can be served and compared, and never be a parent")
    return 0


def keep(pod: VolumePod, kubectl: Kubectl, source: Source, found: Folder, body: Object, store: str) -> None:
    """Have the pod keep the files, and make the Adapter; without it, what was kept goes again."""
    where = ("--store", store, "--digest", body["spec"]["digest"])
    made = False
    try:
        if source.on_claim:
            answer = pod.ask(
                "adopt", "--source", source.where, *where, feed=lambda sink: written(sink, line_of(found.files))
            )
        else:
            answer = pod.ask("receive", *where, feed=lambda sink: send(found.files, Path(source.where), sink))
        new = json.loads(answer)["new"]
        try:
            create(kubectl, body)
            made = True
        finally:
            if new and not made and not is_used(kubectl, body["spec"]["uri"]):
                pod.ask("discard", *where)
    except (ValueError, KeyError) as error:
        raise CliError(f"the pod answered what this version does not know: {error}") from None


def adapter_of(
    kubectl: Kubectl, source: Source, catalog: Sequence[Object], found: Folder, store: str, note: Say
) -> Object:
    """Return the Adapter, once the cluster has said that it would take it."""
    try:
        lora = lora_of(found)
    except Misfit as error:
        raise CliError(f"{source.where}: {error}") from None
    base = base_of(lora, source, catalog, note)
    if found.left_out:
        note(
            f"left out: {', '.join(found.left_out[:5])}{' and more' if len(found.left_out) > 5 else ''} (hidden, or another adapter's receipt)"
        )
    digest = files_digest(found.files)
    spec = AdapterSpec(
        base=base,
        rank=lora.rank,
        alpha=lora.alpha,
        uri=f"{store}/{address(digest)}",
        digest=digest,
        files=found.files,
    )
    meta = {"name": source.name, "labels": {"app.kubernetes.io/managed-by": "kubectl-halo", ORIGIN_LABEL: IMPORTED}}
    body = {"apiVersion": API_VERSION, "kind": "Adapter", "metadata": meta, "spec": spec.to_json()}
    create(kubectl, body, "--dry-run=server")
    return body


def base_of(lora: Lora, source: Source, catalog: Sequence[Object], note: Say) -> AdapterBase:
    """Return the base of the catalog that the adapter was trained on."""
    revisions = {entry["metadata"]["name"]: str(entry["spec"]["revision"]) for entry in catalog}
    own = own_base(lora, revisions)
    name = source.base or own
    if name not in revisions:
        field = "--base" if source.base else f"{CONFIG}.base_model_name_or_path"
        there = ", ".join(sorted(revisions)) or "none"
        raise CliError(
            f"{field}: found {source.base or lora.base!r}, which is no BaseModel here ({there}); name one with --base"
        )
    if own and own != name:
        raise CliError(f"--base: found {name}, but {CONFIG} names {lora.base}, which is BaseModel {own}; leave it out")
    if lora.base and not own:
        note(f"{CONFIG} names {lora.base}; it is taken for BaseModel {name}, as --base says")
    said = None if lora.revision in BRANCHES else lora.revision
    revision = source.revision or said or revisions[name]
    if revision != revisions[name]:
        field = "--revision" if source.revision else f"{CONFIG}.revision"
        raise CliError(
            f"{field}: found {revision}, but BaseModel {name} is at {revisions[name]}; import it for a BaseModel of that "
            f"revision, or say --revision {revisions[name]} if it was trained on that"
        )
    if not source.revision and not said:
        note(f"nothing says which revision of {name} it was trained on; taken for the catalog's, {revision}")
    return AdapterBase(name=name, revision=revision)


def own_base(lora: Lora, revisions: Mapping[str, str]) -> str | None:
    """Return the BaseModel that the adapter's own configuration names, such as Qwen/Qwen3-8B or a folder of that name."""
    word = (lora.base or "").rstrip("/")
    names = (word, word.rsplit("/", 1)[-1].lower().replace("_", "-"))
    return next((name for name in names if name in revisions), None)


def check_name(kubectl: Kubectl, source: Source) -> None:
    """Refuse what can be no Adapter here."""
    if not re.fullmatch(DNS_NAME, source.name) or len(source.name) > 253:
        raise CliError(f"--name: found {source.name!r}; use small letters, digits, - and ., at most 253")
    if source.on_claim:
        try:
            TypeAdapter(VolumeUri).validate_python(source.where)
        except ValidationError:
            raise CliError(f"found {source.where!r}; write a folder of a claim as pvc://CLAIM/PATH") from None
    elif "://" in source.where:
        raise CliError(f"found {source.where!r}; fetch it, and name the folder, or pvc://CLAIM/PATH")
    try:
        kubectl.get("adapters.halo.training", source.name)
    except NotThere:
        return
    raise CliError(f"--name: found {source.name}, which an Adapter here has already; choose another name")


def claim_for(kubectl: Kubectl, source: Source, settings: Settings) -> str:
    """Return the claim that adapters of this namespace lie on: as given, else the Workspace's, else the installation's."""
    if source.claim:
        return source.claim
    try:
        storage = kubectl.get("workspaces.halo.training", "workspace")["spec"].get("storage") or {}
    except NotThere:
        storage = {}
    if claim := storage.get("claim") or settings.claim:
        return str(claim)
    raise CliError("nothing says on which PersistentVolumeClaim adapters lie here; name it with --claim")


def is_used(kubectl: Kubectl, uri: str) -> bool:
    """Whether an Adapter lies there; if that can't be told, it is."""
    try:
        return any(item["spec"]["uri"] == uri for item in kubectl.get("adapters.halo.training")["items"])
    except CliError:
        return True


def checked(action: Callable[[Path], Folder], folder: Path, where: str) -> Folder:
    """Look at a folder, and say what keeps it from being imported."""
    try:
        return action(folder)
    except Misfit as error:
        raise CliError(f"{where}: {error}") from None
    except OSError as error:
        raise CliError(f"{error.filename or where}: can't be read: {error.strerror}") from None


def look(folder: Path) -> Folder:
    """Return what is in a folder of this machine; raises Misfit."""
    if not folder.is_dir():
        raise Misfit("found no such folder")
    root = folder.resolve()
    # A model hub's cache is links from snapshots/REVISION to blobs. Any other link out of the folder, which may be somebody
    # else's, would copy a file of this machine to where the whole namespace reads it.
    roots = [root, *([root.parent.parent / "blobs"] if root.parent.name == "snapshots" else [])]
    return looked_at(folder, lambda file: file.is_file() and any(file.resolve().is_relative_to(own) for own in roots))


def send(files: list[AdapterFile], folder: Path, sink: BinaryIO) -> None:
    """Write the line of files and their tar."""
    sink.write(line_of(files))
    try:
        pack(files, lambda file: (folder / file.path).open("rb"), sink)
    except BrokenPipeError:
        raise
    except OSError as error:
        raise CliError(f"{error.filename or folder}: changed while it was sent: {error}") from None


def written(sink: BinaryIO, data: bytes) -> None:
    """Write some bytes."""
    sink.write(data)
