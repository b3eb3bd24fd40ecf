"""The command line of `hack/cluster`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from .binaries import PROGRAMS, installed, tools
from .current import CurrentProvider
from .local import LocalProvider, build
from .settings import DEFAULT_NAME, Problem

PROVIDERS = ("local", "current")


def parser() -> argparse.ArgumentParser:
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument(
        "--provider",
        choices=PROVIDERS,
        default=os.environ.get("HALO_CLUSTER_PROVIDER", "local"),
        help="local: an embedded cluster on this machine (default); current: that of the kubeconfig in force",
    )
    shared.add_argument(
        "--name",
        default=os.environ.get("HALO_CLUSTER_NAME", DEFAULT_NAME),
        help=f"which embedded cluster: each name has its own data and ports (default {DEFAULT_NAME})",
    )
    top = argparse.ArgumentParser(prog="hack/cluster", description="A real Kubernetes for demo, tests and benches.")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")

    def command(name: str, text: str) -> argparse.ArgumentParser:
        return commands.add_parser(name, parents=[shared], help=text, description=text)

    up = command("up", "start it, or repair what of it has died; keeps the options of the last up that it is not given")
    up.add_argument("--no-node", dest="node", action="store_false", default=None, help="the control plane alone")
    up.add_argument("--gpus", type=_count, help="GPUs that the node says it has (default 8)")
    up.add_argument("--gpu-product", metavar="NAME", help="and their product label (default NVIDIA-H100-80GB-HBM3)")
    up.add_argument(
        "--audit", action=argparse.BooleanOptionalAction, default=None, help="log every request to log/audit.log"
    )
    down = command("down", "stop it and forget its objects; loaded images stay for the next up")
    down.add_argument("--purge", action="store_true", help="delete its images, logs and certificates too")
    command("status", "say how each part is; exit code 1 unless all are well")
    command("kubeconfig", "print the path of its kubeconfig")
    load = command("load-image", "give it images that buildah or docker has built here")
    load.add_argument("images", nargs="+", metavar="REF")
    load.add_argument("--oci", type=Path, metavar="FOLDER", help="take them from this OCI image layout instead")
    only = command("build", "build the binaries and start nothing")
    only.add_argument("programs", nargs="*", metavar="PROGRAM", help=f"{', '.join(PROGRAMS)} (default: what up needs)")
    command("bin", "print the directory of kubectl and helm, for PATH")
    return top


def main() -> int:
    arguments = parser().parse_args()
    try:
        return run(arguments)
    except Problem as problem:
        print(f"hack/cluster: {problem}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("hack/cluster: interrupted; the same command again goes on from here.", file=sys.stderr)
        return 130


def run(arguments: argparse.Namespace) -> int:
    provider = CurrentProvider() if arguments.provider == "current" else LocalProvider(arguments.name)
    match arguments.command:
        case "up":
            print(provider.up({name: getattr(arguments, name) for name in ("node", "gpus", "gpu_product", "audit")}))
        case "down":
            print(provider.down(arguments.purge))
        case "status":
            lines, well = provider.status()
            print("\n".join(lines))
            return 0 if well else 1
        case "kubeconfig":
            print(provider.kubeconfig())
        case "load-image":
            for line in provider.load_images(arguments.images, arguments.oci):
                print(line, flush=True)
        case "build":
            _build(arguments.programs)
        case "bin":
            print(tools())
    return 0


def _build(names: list[str]) -> None:
    if unknown := sorted(set(names) - PROGRAMS.keys()):
        raise Problem(f"There is no program {', '.join(unknown)}: choose from {', '.join(PROGRAMS)}.")
    if not names:
        build(node=True)
    for name in names:
        print(installed(PROGRAMS[name]) / name)


def _count(text: str) -> int:
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text} is not a number of GPUs")
    return int(text)
