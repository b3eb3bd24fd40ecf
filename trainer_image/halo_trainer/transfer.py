"""`transfer`: what `kubectl halo adapter`, `plot` and `episodes` have a pod do with a claim: stay, give and take files, look at a folder, keep one.

The other end checks what it gets by digest, and this one what it is given. Nothing is read outside the claims that the pod mounts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import secrets
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO

from halo_api.adapter import AdapterFile
from halo_api.digests import files_digest
from halo_api.file_stream import BadStream, inside, pack, read_line, unpack
from halo_api.peft import Misfit, looked_at
from halo_api.run_file import VOLUMES_FOLDER, address, volume_path
from halo_trainer.checkpoints.digest import folder_files
from halo_trainer.failures import RunFailure, failure_of
from halo_trainer.history import written
from halo_trainer.rollouts.kept import transcripts
from halo_trainer.store import Changed, FolderStore


def add_to(parser: argparse.ArgumentParser) -> None:
    """Add the verbs of `transfer`."""
    parser.set_defaults(verb=transfer)
    verbs = parser.add_subparsers(required=True, metavar="WHAT")

    def verb(
        name: str, action: Callable[[argparse.Namespace], None], text: str, *options: str
    ) -> argparse.ArgumentParser:
        made = verbs.add_parser(name, help=text, description=text)
        made.set_defaults(action=action)
        made.add_argument("--volumes", default=VOLUMES_FOLDER, metavar="FOLDER")
        for option in options:
            made.add_argument(option, required=True)
        return made

    verb("hold", hold, "do nothing until a signal, so that the others can be run in the pod")
    verb("send", send, "write a tar of the files that a line on standard input names", "--source")
    verb("list", listed, "write the files of a folder, with their digests", "--source")
    verb("look", look, "write what is in the folder of a LoRA that is to be imported", "--source")
    verb("metrics", metrics, "write the steps of all attempts of a run, a line each", "--source")
    verb("episodes", episodes, "write the sampled episodes of one step of a run, a line each", "--source").add_argument(
        "--step", type=int, help="default: the last that has any"
    )
    verb("receive", receive, "read a line of files and their tar, and keep them", "--store", "--digest")
    verb("adopt", adopt, "keep the files of a folder on a claim that a line on standard input names", "--source", "--store", "--digest")  # fmt: skip
    verb("discard", discard, "remove what was kept", "--store", "--digest")


def transfer(options: argparse.Namespace) -> int:
    """Run one of them; say what went wrong in one sentence."""
    try:
        options.action(options)
        return 0
    except (BadStream, Misfit, RunFailure) as error:
        words = str(error)
    except Changed as error:
        words = f"found {error} after the copy, which is not what was to be kept; nothing was"
    except (OSError, ValueError) as error:
        words = str(failure_of(error))
    print(f"halo-trainer: {words}", file=sys.stderr)
    return 1


def hold(_: argparse.Namespace) -> None:
    """Stay until a signal, as at the pod's own deadline: process 1 gets none that it does not ask for."""
    over = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: over.set())
    print("ready", flush=True)
    over.wait()


def send(options: argparse.Namespace) -> None:
    """Write a tar of the files that are asked for; one that is not there in that size is not sent."""
    folder = place(options.source, options.volumes)
    found = [file for file in read_line(sys.stdin.buffer) if is_there(folder / file.path, file, options.volumes)]
    pack(found, lambda file: (folder / file.path).open("rb"), sys.stdout.buffer)
    sys.stdout.flush()


def listed(options: argparse.Namespace) -> None:
    """Write the files of a folder."""
    print(json.dumps([file.to_json() for file in folder_files(place(options.source, options.volumes))]))


def look(options: argparse.Namespace) -> None:
    """Write what is in a folder, if it is that of a LoRA."""
    folder = place(options.source, options.volumes)
    if not folder.is_dir():
        raise Misfit(f"{options.source}: found no folder; name one as pvc://CLAIM/PATH")
    found = looked_at(folder, lambda path: within(path, options.volumes) and path.is_file())
    print(found.model_dump_json(by_alias=True))


def metrics(options: argparse.Namespace) -> None:
    """Write the steps of a run, attempt by attempt; nothing of a run that has not made its folder yet."""
    folder = place(options.source, options.volumes)
    if folder.is_dir():
        for step in written(folder, lambda path: within(path, options.volumes) and path.is_file()):
            print(step.model_dump_json(by_alias=True, exclude_none=True))


def episodes(options: argparse.Namespace) -> None:
    """Write a line of what there is, and then the episodes of one step, of the latest attempt that sampled it."""
    folder = place(options.source, options.volumes)
    found = transcripts(folder, lambda path: within(path, options.volumes)) if folder.is_dir() else {}
    step = max(found, default=None) if options.step is None else options.step
    print(json.dumps({"steps": sorted(found), "step": step}))
    if step in found:
        with found[step].open("rb") as lines:
            shutil.copyfileobj(lines, sys.stdout.buffer)
        sys.stdout.flush()


def receive(options: argparse.Namespace) -> None:
    """Unpack beside the claim, so that a stream that breaks leaves nothing on it, and keep the files."""
    wanted = read_line(sys.stdin.buffer)
    with tempfile.TemporaryDirectory() as temporary:

        def write(file: AdapterFile, data: IO[bytes]) -> None:
            path = Path(temporary, file.path)
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as target:
                shutil.copyfileobj(data, target, 1 << 20)

        if missing := unpack(sys.stdin.buffer, wanted, write):
            raise BadStream(f"the stream ended early, before {missing[0].path}")
        keep(Path(temporary), wanted, options)


def adopt(options: argparse.Namespace) -> None:
    """Keep files that lie on a claim already."""
    wanted = read_line(sys.stdin.buffer)
    folder = place(options.source, options.volumes)
    for file in wanted:
        if not is_there(folder / file.path, file, options.volumes):
            raise BadStream(f"{file.path}: found no file of {file.size} bytes at {options.source} any more; try again")
    keep(folder, wanted, options)


def keep(source: Path, files: list[AdapterFile], options: argparse.Namespace) -> None:
    """Put the files into the store, and say where, and whether they were new there."""
    files = sorted(files, key=lambda file: file.path)
    if (digest := files_digest(files)) != options.digest:
        raise BadStream(f"found files with {digest}, not {options.digest}")
    was_there = kept_at(options).exists()
    uri = FolderStore(options.store, options.volumes, owner(digest)).put(files, source)
    print(json.dumps({"uri": uri, "new": not was_there}))


def discard(options: argparse.Namespace) -> None:
    """Remove a folder from the store, in one step."""
    kept = kept_at(options)
    gone = kept.with_name(f".gone.{owner(options.digest)}.{secrets.token_hex(4)}")
    with contextlib.suppress(FileNotFoundError):
        kept.rename(gone)
        shutil.rmtree(gone)


def place(uri: str, volumes: str) -> Path:
    """Return where a uri leads, on its claim."""
    path = Path(volume_path(uri, volumes))
    if not inside(uri.removeprefix("pvc://")) or not within(path, volumes):
        raise BadStream(f"{uri} leads out of the claims of this pod")
    return path


def within(path: Path, volumes: str) -> bool:
    """Whether a path, links followed, stays on the claim that it begins on."""
    claim = Path(volumes, path.relative_to(volumes).parts[0])
    return path.resolve().is_relative_to(claim.resolve())


def is_there(path: Path, file: AdapterFile, volumes: str) -> bool:
    """Whether a file of that size is there, on its claim."""
    return within(path, volumes) and path.is_file() and path.stat().st_size == file.size


def kept_at(options: argparse.Namespace) -> Path:
    """Return where the store keeps what has the digest."""
    return place(options.store, options.volumes) / address(options.digest)


def owner(digest: str) -> str:
    """Return by whose name the store clears up: an import of the same files clears what an earlier one left."""
    return f"import-{digest.removeprefix('sha256:')[:16]}"
