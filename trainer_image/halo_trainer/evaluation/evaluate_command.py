"""The options of `halo-trainer evaluate`."""

from __future__ import annotations

import argparse
from pathlib import Path

from halo_api.run_file import VOLUMES_FOLDER


def add_to(made: argparse.ArgumentParser) -> None:
    """Add what an evaluation takes."""
    made.add_argument(
        "--out", type=Path, required=True, metavar="FILE", help="results, JSONL; written with --base, else read"
    )
    made.add_argument("--against", type=Path, metavar="FILE", help="earlier results, to compare these with")
    made.add_argument("--base", metavar="FOLDER", help="a folder or pvc://CLAIM/PATH; without it nothing is played")
    made.add_argument("--adapter", metavar="FOLDER", help="a PEFT folder or pvc://CLAIM/PATH")
    made.add_argument(
        "--server", metavar="URL", help="sample from a running server of vLLM's, in place of this process"
    )
    made.add_argument("--model", default="base", metavar="NAME", help="that server's model; default: base")
    made.add_argument("--tasks", metavar="FILE", help="JSONL tasks, a path or pvc://CLAIM/PATH")
    made.add_argument("--limit", type=int, metavar="N", help="only the first N tasks")
    made.add_argument("--greedy", action="store_true", help="play each task once, greedily")
    made.add_argument("--samples", type=int, default=0, metavar="K", help="play each task K times at --temperature")
    made.add_argument("--temperature", type=float, default=1.0, metavar="T", help="default: 1")
    made.add_argument("--seed", type=int, default=0, metavar="N", help="of all samples; default: 0")
    made.add_argument("--max-new-tokens", type=int, default=512, metavar="N", help="of one answer; default: 512")
    made.add_argument("--max-turns", type=int, default=8, metavar="N", help="of an episode; default: 8")
    made.add_argument("--context", type=int, metavar="N", help="tokens of an episode; default: the base's")
    made.add_argument("--batch", type=int, default=64, metavar="N", help="episodes at once; default: 64")
    made.add_argument("--workers", type=int, default=2, metavar="N", help="environment processes; default: 2")
    made.add_argument("--volumes", default=VOLUMES_FOLDER, metavar="FOLDER")
