"""`verify`: the files of a published adapter, hashed again and held to the list of what was published. No torch, no GPU."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
from collections.abc import Iterable, Iterator
from typing import Any

from halo_api.adapter import CONFIG, AdapterFile
from halo_api.conditions import Reason
from halo_api.digests import files_digest
from halo_api.receipt import KEY_NAME, RECEIPT_NAME
from halo_api.receipt_check import Finding, Problem, differences
from halo_api.report import AdapterConfig, FileProblem, Outcome, VerificationReport
from halo_api.run_file import RunFile, VerifyPlan, volume_path
from halo_trainer.failures import RunFailure
from halo_trainer.reporting import Reporting

# No configuration of an adapter is larger; what is, says nothing.
CHUNK = 1 << 20
# What the kernel says of a name behind which nothing can be read.
NO_FILE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.ENODEV)
# As JSON, so that five problems and what the configuration says fit into a termination message with room to spare.
PROBLEMS, LONGEST_PROBLEM, LONGEST_WORD = 5, 400, 300
# Beside the files of a folder that was pulled, and none of them.
BESIDE = (RECEIPT_NAME, KEY_NAME)


def verify(run: RunFile, volumes: str, report: Reporting) -> Outcome:
    """Say what the files are now; that they are wrong is no failure of the role."""
    plan = run.verify
    if plan is None:
        raise RunFailure(Reason.INVALID_SPEC, "the run file has no verify plan; the operator writes it")
    report.phase("Working")
    found, config, findings = looked_at(plan, volume_path(plan.uri, volumes))
    told = VerificationReport(
        digest=files_digest(found),
        problems=tuple(
            FileProblem(problem=one.problem, message=within(f"{one.where}: {one.message}", LONGEST_PROBLEM))
            for one in findings[:PROBLEMS]
        ),
        config=config_of(config),
    )
    message = f"{len(found)} of {len(plan.files)} files hashed, {len(findings)} problems"
    return Outcome(result="Succeeded", reason=Reason.SUCCEEDED, message=message, verification=told)


def looked_at(plan: VerifyPlan, folder: str) -> tuple[list[AdapterFile], bytes, list[Finding]]:
    """Return the adapter's files that are there, its configuration, and all that is wrong."""
    said = {file.path for file in plan.files}
    found: list[AdapterFile] = []
    extra: list[AdapterFile] = []
    config = b""
    try:
        for name in paths_in(folder):
            if name not in said:
                # Nobody reads it, so that nobody needs its digest.
                extra.append(AdapterFile.model_construct(path=printable(name), sha256="", size=0))
            elif read := hashed(os.path.join(folder, name), name):
                found.append(read[0])
                config = read[1] if name == CONFIG else config
    except (FileNotFoundError, NotADirectoryError) as error:
        if error.filename != folder:
            raise
        return [], b"", [Finding(Problem.MISSING, plan.uri, "there is no such folder")]
    beside = [file for file in extra if file.path not in BESIDE]
    return found, config, differences(plan.files, [*found, *beside], "the Adapter")


def paths_in(folder: str) -> Iterator[str]:
    """Yield the path of all that is below a folder and no folder itself; raises OSError where it can't look."""

    def fail(error: OSError) -> None:
        raise error

    for inner, folders, files in os.walk(folder, onerror=fail):
        links = [name for name in folders if os.path.islink(os.path.join(inner, name))]
        for name in (*files, *links):
            yield os.path.relpath(os.path.join(inner, name), folder)


def hashed(path: str, name: str) -> tuple[AdapterFile, bytes] | None:
    """Return a file with its digest, and its bytes where they are few; None for what is no file."""
    try:
        # What was put there instead of a file, such as a pipe, must not be waited for.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in NO_FILE:
            return None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        return None
    digest, size, head = hashlib.sha256(), 0, b""
    with os.fdopen(descriptor, "rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
            size += len(chunk)
            head = chunk if size == len(chunk) else b""
    return AdapterFile(path=name, sha256=f"sha256:{digest.hexdigest()}", size=size), head


def config_of(data: bytes) -> AdapterConfig:
    """Return what an adapter's configuration says; it may be of anybody's making, and say anything."""
    try:
        said = json.loads(data)
    except (ValueError, RecursionError):
        said = {}
    if not isinstance(said, dict):
        said = {}
    return AdapterConfig(
        base=text_of(said.get("base_model_name_or_path")),
        revision=text_of(said.get("revision")),
        rank=rank if isinstance(rank := number_of(said.get("r")), int) else None,
        alpha=number_of(said.get("lora_alpha")),
    )


def text_of(value: Any) -> str | None:
    """Return a text, cut beyond what any base is called."""
    return within(printable(value), LONGEST_WORD) if isinstance(value, str) else None


def number_of(value: Any) -> Any:
    """Return a number that a LoRA could have; JSON as Python reads it knows infinite ones, and of any length."""
    return value if type(value) in (int, float) and abs(value) < 1e9 else None


def printable(text: str) -> str:
    """Return a name as UTF-8 can carry it: the kernel's are bytes, and JSON's may hold half a character."""
    return text.encode("utf-8", "backslashreplace").decode()


def within(text: str, size: int) -> str:
    """Return as much of a text as takes `size` bytes as JSON."""
    if taken(text) <= size:
        return text
    kept, left = [], size - taken("…")
    for character in text:
        left -= taken(character)
        if left < 0:
            break
        kept.append(character)
    return "".join(kept) + "…"


def taken(characters: Iterable[str]) -> int:
    """Return how many bytes some characters take in a JSON string."""
    return len(json.dumps("".join(characters), ensure_ascii=False).encode()) - 2
