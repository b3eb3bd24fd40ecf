"""Which policy a server takes: of its attempt, never an older one, and with exactly the files that were announced."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from halo_api.adapter import CONFIG, FILE_PATH, WEIGHTS
from halo_api.digests import bytes_digest, files_digest
from halo_api.rollouts import BASE_MODEL_NAME, Policy, PolicyAdapter
from halo_api.run_file import RunFile, volume_path

# It becomes a model's name and a folder's.
NAME = re.compile(r"[A-Za-z0-9][-A-Za-z0-9._]*")


class Refused(Exception):
    """The policy is not taken, and the one before it stays; one sentence says why."""


def check(policy: Policy, served: Policy | None, run: RunFile) -> None:
    """Raise Refused for a policy that this server must not serve, or not any more."""
    assert run.rollout is not None
    if policy.attempt != run.run.attempt:
        raise Refused(
            f"policy {policy.name} is of attempt {policy.attempt}, and this server of attempt {run.run.attempt}"
        )
    if policy.serving != run.rollout.serving:
        raise Refused(
            f"policy {policy.name} is to be {policy.serving}, and this server takes {run.rollout.serving} ones"
        )
    if policy.name == BASE_MODEL_NAME or not NAME.fullmatch(policy.name):
        raise Refused(f"found {policy.name!r} as a policy's name; letters, digits, '.', '_' and '-' make one")
    if served is None or policy == served:
        return
    if policy.version < served.version:
        raise Refused(f"policy {policy.name} is older than {served.name}, which this server has")
    if policy.version == served.version or policy.name == served.name:
        raise Refused(
            f"policy {policy.name} differs from {served.name}, which this server has under its name or version"
        )


def fetch(adapter: PolicyAdapter, volumes: str, target: Path, rank: int) -> None:
    """Copy an adapter's files into `target`; raises Refused unless they are those announced, a LoRA of at most that rank.

    What is loaded is the copy that was hashed: the volume is others' to write, and the trainer removes old policies while
    vLLM may read them again.
    """
    source = Path(volume_path(adapter.uri, volumes))
    shutil.rmtree(target, ignore_errors=True)
    for file in adapter.files:
        if not re.fullmatch(FILE_PATH.strip("^$"), file.path):
            raise Refused(f"found {file.path!r} among the files of {adapter.uri}, which leads elsewhere")
        try:
            data = (source / file.path).read_bytes()
        except OSError as error:
            raise Refused(f"{adapter.uri}/{file.path} can't be read ({type(error).__name__})") from error
        if (found := bytes_digest(data)) != file.sha256:
            raise Refused(f"{adapter.uri}/{file.path} is {found}, and {file.sha256} was announced")
        (target / file.path).parent.mkdir(parents=True, exist_ok=True)
        (target / file.path).write_bytes(data)
    if (found := files_digest(adapter.files)) != adapter.digest:
        raise Refused(f"the files of {adapter.uri} are {found} together, and {adapter.digest} was announced")
    if missing := [name for name in (CONFIG, WEIGHTS) if name not in {file.path for file in adapter.files}]:
        raise Refused(f"{adapter.uri} has no {' and no '.join(missing)}, which a LoRA in PEFT's format has")
    try:
        found_rank = int(json.loads((target / CONFIG).read_text())["r"])
    except (ValueError, LookupError, TypeError) as error:
        raise Refused(f"{adapter.uri}/{CONFIG} names no rank") from error
    if found_rank > rank:
        raise Refused(f"{adapter.uri} is of rank {found_rank}, and this server has room for rank {rank}")


def check_layers(weights: Path) -> None:
    """Raise Refused for a LoRA on experts, which vLLM leaves out where it can't serve it, without a word."""
    with weights.open("rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    if name := next((name for name in header if ".experts." in name), None):
        raise Refused(f"the adapter has {name}, and vLLM on CPUs serves no LoRA on experts beside the base; fold it in")


def superseded(loaded: Sequence[str], keep: int) -> list[str]:
    """Return which of the loaded policies, oldest first, are to be unloaded so that the last `keep` stay."""
    return list(loaded[: max(len(loaded) - keep, 0)])
