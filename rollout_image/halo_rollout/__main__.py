"""`python -m halo_rollout serve`: be a rollout pod of a run, or become vLLM's server for a base and its adapters."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import sys
from pathlib import Path
from typing import NoReturn

from halo_api.conditions import Reason
from halo_api.report import Outcome
from halo_api.run_file import REPORT_PATH, RUN_FILE_PATH, VOLUMES_FOLDER, RunFile, volume_path
from halo_rollout.flags import Server, command, cpu_flags, dtype_for, environment, precision, run_server
from halo_rollout.reporting import ReportFile
from halo_rollout.traits import Unservable, check_servable, read_traits


def main() -> int:
    """Parse the arguments; guard a server for a run, or hand the process over to vLLM."""
    parser = argparse.ArgumentParser(prog="halo-rollout", description=__doc__)
    serve = parser.add_subparsers(required=True).add_parser("serve", help="serve a base, and adapters beside it")
    what = serve.add_mutually_exclusive_group(required=True)
    what.add_argument("--base", metavar="FOLDER", help="a folder or pvc://CLAIM/PATH, for people")
    what.add_argument(
        "--run-file", type=Path, nargs="?", const=Path(RUN_FILE_PATH), help="a run's; its supervisor starts it"
    )
    serve.add_argument("--report", type=Path, default=Path(REPORT_PATH), help="where the run's report goes")
    serve.add_argument("--adapter", action="append", default=[], metavar="NAME=FOLDER", help="may be given again")
    serve.add_argument("--port", type=int, default=8000)
    serve.add_argument("--context-length", type=int, default=2048)
    serve.add_argument("--volumes", default=VOLUMES_FOLDER, metavar="FOLDER")
    options = parser.parse_args()
    on_gpu = Path("/dev/nvidiactl").exists()
    dtype = dtype_for(on_gpu, cpu_flags(Path("/proc/cpuinfo").read_text()))
    if options.run_file:
        return serve_run(options, on_gpu, dtype)
    return serve_people(parser, options, on_gpu, dtype)


def serve_people(parser: argparse.ArgumentParser, options: argparse.Namespace, on_gpu: bool, dtype: str) -> NoReturn:
    """Become vLLM's server."""
    adapters = {}
    for text in options.adapter:
        name, found, folder = text.partition("=")
        if not found or not name:
            parser.error(f"--adapter: found {text!r}, write NAME=FOLDER")
        adapters[name] = folder_of(folder, options.volumes)
    base = folder_of(options.base, options.volumes)
    try:
        traits = read_traits(base)
        dtype = precision("bf16", traits, on_gpu, dtype)
        check_servable(traits, on_gpu, dtype)
    except Unservable as error:
        parser.error(f"--base: {error}")
    server = Server(
        base=base,
        adapters=adapters,
        port=options.port,
        context_length=options.context_length,
        max_rank=max([16, *(rank_of(path) for path in adapters.values())]),
        dtype=dtype,
        traits=traits,
        on_gpu=on_gpu,
    )
    words = command(server)
    os.execvpe(words[0], words, {**environment(on_gpu), **os.environ})


def serve_run(options: argparse.Namespace, on_gpu: bool, dtype: str) -> int:
    """Guard a server for a run until it is told to end; return the exit code, 0 only then."""
    from halo_rollout.guard import TOLD, guard

    logging.basicConfig(level=logging.INFO, format="guard: %(message)s", stream=sys.stderr)
    run = RunFile.model_validate_json(options.run_file.read_bytes())
    if run.role != "rollout" or run.rollout is None:
        print(f"halo-rollout: {options.run_file} is for the role {run.role}, not rollout", file=sys.stderr)
        return 1
    report = ReportFile(options.report, run)
    try:
        base = folder_of(run.base.source, options.volumes)
        traits = read_traits(base)
        server = run_server(run.base, base, run.rollout, traits, dtype, on_gpu)
        check_servable(traits, on_gpu, server.dtype)
        outcome = asyncio.run(guard(run, server, options.volumes, report, on_gpu))
    except Unservable as error:
        outcome = Outcome(result="Failed", reason=Reason.BASE_MISSING, message=f"base {run.base.name}: {error}")
    except OSError as error:
        outcome = Outcome(result="Failed", reason=Reason.CRASHED, message=f"vLLM could not be started: {error}")
    report.finish(outcome)
    print(f"{outcome.result} ({outcome.reason}): {outcome.message}", file=sys.stderr, flush=True)
    return 0 if outcome in TOLD.values() else 1


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
    sys.exit(main())
