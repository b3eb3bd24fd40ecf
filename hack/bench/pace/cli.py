"""The command line of `hack/bench/sft`: the table, the targets and the last line of JSON."""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from .curves import drawn
from .figures import AT_LEAST, targets
from .measure import Measured, cases, measure, ready_base
from .sides import say


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="hack/bench/sft",
        description="Measure Halo's trainer against TRL's SFTTrainer: the same token rows, base, precision, LoRA, optimizer and "
        "rows a step, each side in a process of its own, step by step in turn (on a GPU one after the other).",
    )
    top.add_argument("--quick", action="store_true", help="a base of 6 layers and few steps: under a minute")
    top.add_argument("--case", action="append", choices=list(AT_LEAST), help="only this case (default: both)")
    top.add_argument("--rounds", type=int, metavar="N", help="steps of each side (default 8, on a GPU 12, quick 3)")
    top.add_argument("--warm", type=int, metavar="N", help="of which the first don't count (default 2, quick 1)")
    top.add_argument(
        "--rows", type=int, action="append", metavar="T", help="on a GPU: the longest rows (default 4096, 16384, 32768)"
    )
    top.add_argument(
        "--only", action="append", metavar="SIDE", help="only the sides of this name, or pattern such as 'TRL*'"
    )
    top.add_argument("--svg", type=Path, metavar="FILE", help="draw the losses of both sides into a file")
    top.add_argument("--here", action="store_true", help="in this Python, which has the trainer's packages")
    top.add_argument("--keep", action="store_true", help="leave the folder with the rows and the logs")
    top.add_argument("--json", action="store_true", help="print the last line alone")
    return top


def main() -> int:
    options = parser().parse_args()
    result, measured = bench(options)
    if not options.json:
        print(table(measured))
    compared = [case for case in result["cases"] if "losses" in case]
    if options.svg and compared:
        options.svg.write_bytes(drawn(compared))
    print(json.dumps(result))
    return 0 if result["met"] else 1


def bench(options: argparse.Namespace) -> tuple[dict[str, Any], list[Measured]]:
    begun = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="halo-bench-sft-"))
    measured: list[Measured] = []
    try:
        base = ready_base(folder, options.quick)
        for case in cases(options.case, options.rows, options.quick, base):
            rounds = options.rounds or (3 if options.quick else 12 if base.gpu else 8)
            warm = options.warm if options.warm is not None else (1 if options.quick else 2)
            measured.append(measure(case, base, folder, rounds, warm, options.only))
            say(json.dumps({name: value for name, value in measured[-1].found.items() if name != "losses"}))
    finally:
        if options.keep:
            say(f"kept {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
    wanted = [target for one in measured for target in targets(one.name, one.case, one.longest, one.found)]
    result = {
        "bench": "sft",
        "quick": options.quick,
        "base": base.words,
        "device": base.gpu or "cpu, one thread a side",
        "cases": [{"case": one.name, "sides": one.speeds} | one.found for one in measured],
        "total_s": round(time.monotonic() - begun, 1),
        "targets": wanted,
        "met": all(target["met"] for target in wanted),
    }
    return result, measured


def table(measured: list[Measured]) -> str:
    head = ["case", "side", "trained tokens/s", "tokens/s", "tokens a step", "step p50, s", "its CPU, s", "peak MiB"]
    rows = [head, ["---"] * 2 + ["---:"] * 6]
    names = ("trained_tokens_per_s", "tokens_per_s", "tokens_a_step", "step_p50_s", "cpu_p50_s", "peak_mib")
    for one in measured:
        for side, speed in one.speeds.items():
            if "failed" in speed:
                rows.append([one.name, side, speed["failed"], *[""] * 5])
            else:
                rows.append([one.name, side, *(f"{speed[name]:g}" for name in names)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
