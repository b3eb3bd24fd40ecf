"""`python -m halo_rollout serve`: become vLLM's server for a base and its adapters."""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path

from halo_api.run_file import VOLUMES_FOLDER, volume_path
from halo_rollout.flags import Server, command, cpu_flags, dtype_for, environment


def main() -> None:
    """Parse the arguments and hand the process over to vLLM."""
    parser = argparse.ArgumentParser(prog="halo-rollout", description=__doc__)
    serve = parser.add_subparsers(required=True).add_parser("serve", help="serve a base, and adapters beside it")
    serve.add_argument("--base", required=True, metavar="FOLDER", help="a folder or pvc://CLAIM/PATH")
    serve.add_argument("--adapter", action="append", default=[], metavar="NAME=FOLDER", help="may be given again")
    serve.add_argument("--port", type=int, default=8000)
    serve.add_argument("--context-length", type=int, default=2048)
    serve.add_argument("--volumes", default=VOLUMES_FOLDER, metavar="FOLDER")
    options = parser.parse_args()
    adapters = {}
    for text in options.adapter:
        name, found, folder = text.partition("=")
        if not found or not name:
            parser.error(f"--adapter: found {text!r}, write NAME=FOLDER")
        adapters[name] = folder_of(folder, options.volumes)
    on_gpu = Path("/dev/nvidiactl").exists()
    server = Server(
        base=folder_of(options.base, options.volumes),
        adapters=adapters,
        port=options.port,
        context_length=options.context_length,
        max_rank=max([16, *(rank_of(path) for path in adapters.values())]),
        dtype=dtype_for(on_gpu, cpu_flags(Path("/proc/cpuinfo").read_text())),
    )
    words = command(server)
    os.execvpe(words[0], words, {**environment(on_gpu), **os.environ})


def folder_of(text: str, volumes: str) -> Path:
    """Return the folder of a path or a volume uri."""
    return Path(volume_path(text, volumes) if text.startswith("pvc://") else text)


def rank_of(adapter: Path) -> int:
    """Return an adapter's LoRA rank; exits with one sentence when the folder is no adapter."""
    try:
        return int(json.loads((adapter / "adapter_config.json").read_text())["r"])
    except (OSError, ValueError, KeyError) as error:
        raise SystemExit(f"--adapter: {adapter} is no PEFT folder ({type(error).__name__}: {error})") from None


if __name__ == "__main__":
    main()
