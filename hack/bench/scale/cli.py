"""The command line of `hack/bench/operator`: which configurations, the table, the targets and the last line of JSON."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from typing import Any

from embedded.binaries import lock
from embedded.settings import cache_root

from .api import Api
from .costs import prefer
from .measure import measured
from .stand import NAMESPACE, Stand

SIZES = (50, 200, 500, 2000)
# Seconds until all pods exist that Kubeflow Trainer 2.1 took on such a machine; ours may take a quarter.
TRAINER_S = {(50, 1): 7.3, (200, 1): 22.3, (500, 1): 74.9, (50, 2): 7.2, (200, 2): 33.1, (500, 2): 94.0}
QUARTER = 0.25
MOST_WRITES = 14.0
MOST_RSS_MIB = 200.0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="hack/bench/operator", description="Measure the operator with many runs at once on kwok nodes."
    )
    top.add_argument("--quick", action="store_true", help="50 runs of one pod, once: within a minute")
    top.add_argument(
        "--n", type=int, action="append", metavar="RUNS", help="how many runs at once (default 50 200 500 2000)"
    )
    top.add_argument("--pods", type=int, action="append", choices=(1, 2), help="trainer pods of each (default 1 and 2)")
    top.add_argument("--runs", type=int, metavar="COUNT", help="measurements of each (default 3; above 500 runs 1)")
    top.add_argument("--json", action="store_true", help="print the last line alone")
    top.add_argument("--prefer", action="store_true", help="run before the machine's other processes, where it is busy")
    top.add_argument("--keep", action="store_true", help="leave the cluster up, to look at it")
    return top


def main() -> int:
    options = parser().parse_args()
    stand = Stand()
    # A second bench would take the first one's cluster down, and each would measure the other.
    with lock(cache_root() / "cluster" / ".bench-operator.lock"):
        try:
            stand.up()
            results = asyncio.run(bench(stand, options))
        finally:
            if not options.keep:
                stand.down()
    checks = [check for result in results for check in targets(result)]
    if not options.json:
        print(table(results))
    met = all(check["met"] for check in checks)
    print(json.dumps({"bench": "operator", "quick": options.quick, "results": results, "targets": checks, "met": met}))
    return 0


async def bench(stand: Stand, options: argparse.Namespace) -> list[dict[str, Any]]:
    results = []
    if options.prefer:
        for pid in (*stand.pids().values(), os.getpid()):
            prefer(pid)
    async with Api.of(stand.home, NAMESPACE) as api:
        for pods in options.pods or ((1,) if options.quick else (1, 2)):
            for n in options.n or ((50,) if options.quick else SIZES):
                runs = options.runs or (1 if options.quick or n > 500 else 3)
                warm, extra = (0, 0) if options.quick else (0, 1) if n > 500 else (1, 2)
                results.append(await measured(stand, api, n, pods, runs, warm, extra))
    return results


def targets(result: dict[str, Any]) -> list[dict[str, Any]]:
    """What the figures of a configuration are held to."""
    size = (result["n"], result["pods"])
    limits = {"rss_mib": MOST_RSS_MIB}
    if size in TRAINER_S:
        limits["pods_s"] = TRAINER_S[size] * QUARTER
    if result["pods"] == 1:
        limits["writes"] = MOST_WRITES
    return [
        {
            "n": size[0],
            "pods": size[1],
            "figure": figure,
            "limit": limit,
            "found": result[figure],
            "met": result[figure] <= limit,
        }
        for figure, limit in limits.items()
    ]


def table(results: list[dict[str, Any]]) -> str:
    columns = {
        "n": "runs",
        "pods": "pods of each",
        "pods_s": "all pods, s",
        "terminal_s": "all terminal, s",
        "pods_to_floor": "pods : floor",
        "writes": "writes a run",
        "reads": "reads a run",
        "etcd_kb": "etcd kB a run",
        "rss_mib": "RSS, MiB",
        "operator_cpu_s": "operator CPU, s",
        "other_share": "others' share",
    }
    rows = [list(columns.values()), ["---:"] * len(columns)]
    rows += [[f"{result[name]:g}" for name in columns] for result in results]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
