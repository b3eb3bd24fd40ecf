"""The command line of `hack/bench/budget`: the waves of both scenarios, the table, the targets and the last line of JSON."""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import time
from collections.abc import Iterable
from contextlib import nullcontext
from decimal import Decimal
from pathlib import Path
from typing import Any

from embedded.binaries import lock
from embedded.settings import cache_root

from .figures import Stopped, wrong_with_book
from .processes import preferred
from .stand import Stand
from .wave import DOWN, UP, Wave, say

RUNS, AT_ONCE = 20, 7
MOST_OVERRUN = 60.0
# In each wave, so many trainers hang before their deadline.
HANG = {UP: 1, DOWN: 2}
MORE_WAVES = 2
TIMES = (
    "A wave takes five to six minutes whatever its size: the least budget that a run is accepted with is nearly five. "
    "By default there are six waves, in about 35 minutes."
)


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="hack/bench/budget",
        description="Measure on real trainers, on the embedded cluster, when a run ends that has used its budget: with the "
        f"operator up, and with it killed before the deadline. {TIMES} Needs root, since it stops processes of pods.",
    )
    top.add_argument("--quick", action="store_true", help="one run of each scenario: two waves, about eleven minutes")
    top.add_argument("--runs", type=int, metavar="N", help=f"runs of each scenario (default {RUNS})")
    top.add_argument("--at-once", type=int, default=AT_ONCE, metavar="N", help=f"runs of a wave (default {AT_ONCE})")
    top.add_argument(
        "--margin", type=Decimal, default=Decimal("0.002"), metavar="H", help="above the least budget (default 0.002)"
    )
    top.add_argument(
        "--as-is", action="store_true", help="measure the Halo that the cluster has: build and install none"
    )
    top.add_argument(
        "--turn", type=Path, metavar="FILE", help="made while the operator is down, and waited for while it is there"
    )
    top.add_argument(
        "--prefer", action="store_true", help="run pods before the machine's other processes, where it is busy"
    )
    top.add_argument("--json", action="store_true", help="print the last line alone")
    top.add_argument("--keep", action="store_true", help="leave the namespace, to look at it")
    return top


def main() -> int:
    options = parser().parse_args()
    # Ended early, it still brings the operator back.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # Two of them would have each other's operator killed.
    with lock(cache_root() / "cluster" / ".bench-budget.lock"), preferred() if options.prefer else nullcontext():
        result, runs = bench(options)
    if not options.json:
        print(table(runs))
    print(json.dumps(result))
    return 0 if result["met"] else 1


def bench(options: argparse.Namespace) -> tuple[dict[str, Any], list[Stopped]]:
    each = options.runs or (1 if options.quick else RUNS)
    at_once = min(options.at_once, each)
    begun, stand = time.monotonic(), Stand(options.as_is, options.turn)
    waves: list[Wave] = []
    try:
        budget = stand.open((2 * each + MORE_WAVES * at_once), options.margin)
        say(f"{stand.namespace}: a budget of {budget} H100-hours, {budget * 3600} s on one GPU")
        for scenario, size in planned(each, at_once):
            waves.append(waved(stand, scenario, size, budget, len(waves)))
            if waves[-1].spoiled and sum(bool(wave.spoiled) for wave in waves) <= MORE_WAVES:
                waves.append(waved(stand, scenario, size, budget, len(waves)))
        spec = stand.workspace()["spec"]["allocation"]
        wrong = list(wrong_with_book(stand.workspace()["status"], Decimal(str(spec["h100Hours"]))))
        wrong += filter(None, [stand.ledger_check()])
    finally:
        stand.close(options.keep)
    counted = [stopped for wave in waves if not wave.spoiled for stopped in wave.stopped]
    wrong += [words for wave in waves if not wave.spoiled for words in wave.wrong]
    scenarios = {name: figures([s for s in counted if s.scenario == name]) for name in (UP, DOWN)}
    targets = [{"figure": "wrong", "limit": 0, "found": len(wrong), "met": not wrong}]
    for name, found in scenarios.items():
        most = found.get("overrun_max_s")
        targets.append({"figure": f"runs, {name}", "limit": each, "found": found["runs"], "met": found["runs"] >= each})
        targets.append(
            {
                "figure": f"overrun_max_s, {name}",
                "limit": MOST_OVERRUN,
                "found": most,
                "met": most is not None and most <= MOST_OVERRUN,
            }
        )
    result = {
        "bench": "budget",
        "quick": options.quick,
        "budget_h100_hours": str(budget),
        "hold_s": float(budget * 3600),
        "at_once": at_once,
        "scenarios": scenarios,
        "wrong": wrong,
        "killed_before_s": [round(wave.lead_seconds, 1) for wave in waves if wave.lead_seconds is not None],
        "spoiled": [f"{wave.scenario}: {wave.spoiled}" for wave in waves if wave.spoiled],
        "total_s": round(time.monotonic() - begun, 1),
        "targets": targets,
        "met": all(target["met"] for target in targets),
    }
    return result, counted


def planned(each: int, at_once: int) -> Iterable[tuple[str, int]]:
    """Yield the waves of both scenarios in turn, so that a bench that is ended early has both."""
    for done in range(0, each, at_once):
        for scenario in (UP, DOWN):
            yield scenario, min(at_once, each - done)


def waved(stand: Stand, scenario: str, size: int, budget: Decimal, number: int) -> Wave:
    kind = "up" if scenario == UP else "down"
    names = [f"{kind}-{number}-{index}" for index in range(size)]
    # One of a single run hangs not: a quick bench shows how runs end in general.
    wave = Wave(stand, scenario, names, HANG[scenario] if size > HANG[scenario] else 0, budget)
    wave.run()
    say(json.dumps(figures(wave.stopped) | {"wave": number, "wrong": wave.wrong, "spoiled": wave.spoiled}))
    return wave


def figures(runs: list[Stopped]) -> dict[str, Any]:
    if not runs:
        return {"runs": 0}
    found: dict[str, Any] = {"runs": len(runs), "hung": sum(run.hung for run in runs)}
    for name in ("overrun", "slack", "late", "adapter_after"):
        values = [getattr(run, name) for run in runs]
        found |= {f"{name}_p50_s": round(statistics.median(values), 1), f"{name}_max_s": round(max(values), 1)}
    calm = [run.late for run in runs if not run.hung]
    if calm:
        found["late_of_calm_max_s"] = round(max(calm), 1)
    found |= {"step_min": min(run.step for run in runs), "step_max": max(run.step for run in runs)}
    found["published_by"] = {
        by: sum(run.published_by == by for run in runs) for by in ("trainer", "operator", "nobody")
    }
    return found


def table(runs: list[Stopped]) -> str:
    head = ["run", "operator", "hung", "used, s", "held, s", "overrun, s", "slack, s", "end after deadline, s", "step"]
    head += ["published by", "adapter after end, s"]
    rows = [head, ["---"] * 3 + ["---:"] * 6 + ["---", "---:"]]
    for run in runs:
        figures_ = (run.used_seconds, run.hold_seconds, run.overrun, run.slack, run.late, run.step)
        words = [run.name, run.scenario.removeprefix("operator "), "yes" if run.hung else ""]
        rows.append(
            [*words, *(f"{float(figure):g}" for figure in figures_), run.published_by, f"{run.adapter_after:g}"]
        )
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
