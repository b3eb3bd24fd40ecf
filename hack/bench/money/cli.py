"""The command line of `hack/bench/ledger`: the stand, the worth of a hold, the repetitions, the table and the last line of JSON."""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any

from embedded.binaries import lock
from embedded.settings import cache_root
from scale.costs import AuditLog, prefer
from tests.api.client import Api, Refused
from tests.api.kube import eventually

from .book import Violation, price, rounded_up
from .harm import Harm
from .player import Player
from .repetition import Repetition, Sizes
from .stand import GRPO_HOURS, NAME, PRICE, Room, Stand, a_grpo_run, a_training_job

EACH, FITS = 100, 40
MOST_WRITES = 20
# A namespace goes when the namespace controller has looked often enough, in its own time.
GONE_SECONDS = 180.0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="hack/bench/ledger",
        description="Prove that no money is held twice, lost or overspent while replicas of the operator are killed.",
    )
    top.add_argument("--quick", action="store_true", help="one repetition: within a minute")
    top.add_argument("--repetitions", type=int, metavar="N", help="how many (default 100)")
    top.add_argument("--parallel", type=int, default=2, metavar="N", help="how many at once (default 2)")
    top.add_argument("--each", type=int, default=EACH, metavar="RUNS", help=f"runs of each kind (default {EACH})")
    top.add_argument(
        "--fits", type=int, default=FITS, metavar="RUNS", help=f"how many the wallet is for (default {FITS})"
    )
    top.add_argument("--seed", type=int, default=0, help="of all chances (default 0)")
    top.add_argument("--json", action="store_true", help="print the last line alone")
    top.add_argument("--prefer", action="store_true", help="run before the machine's other processes, where it is busy")
    top.add_argument("--keep", action="store_true", help="leave the cluster up, to look at it")
    return top


def main() -> int:
    options = parser().parse_args()
    # Replicas and cluster end with us, also when we are told to.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    stand = Stand()
    # A second one would take this one's cluster down.
    with lock(cache_root() / "cluster" / ".bench-ledger.lock"):
        try:
            result = proof(stand, options)
        finally:
            if not options.keep:
                stand.down()
    if not options.json:
        print(table(result))
    print(json.dumps(result))
    return 0 if result["met"] else 1


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def proof(stand: Stand, options: argparse.Namespace) -> dict[str, Any]:
    count = options.repetitions or (1 if options.quick else 100)
    chance = random.Random(options.seed)
    api = stand.up()
    if options.prefer:
        # The replicas have it from us.
        for pid in (*stand.pids(), os.getpid()):
            prefer(pid)
    player, harm = Player(api), Harm(stand.kubectl, api, chance)
    begun, violations, repetitions, writes = time.monotonic(), [], [], None
    try:
        player.start()
        harm.start()
        sizes = worth(api, player, options)
        say(f"a hold is {sizes.hold} USD; {2 * sizes.each} runs on a wallet for {sizes.fits}")
        bench = Bench(stand, api, player, harm, sizes, options.seed)
        if not options.quick:
            writes = bench.calm()
        harm.allow(True)
        with ThreadPoolExecutor(options.parallel) as pool:
            list(pool.map(bench.once, range(1, count + 1)))
        harm.allow(False)
        repetitions, violations = bench.repetitions, bench.all_violations()
    finally:
        kept = bool(violations) or not repetitions
        errors = harm.stop(kept)
        player.stop()
        if kept:
            say(f"the replicas' logs: {[str(replica.log) for replica in harm.replicas]}")
    kinds = Counter(violation.kind for violation in violations)
    targets = [{"figure": "violations", "limit": 0, "found": len(violations), "met": not violations}]
    if writes is not None:
        targets.append(
            {"figure": "workspace_writes", "limit": MOST_WRITES, "found": writes, "met": writes <= MOST_WRITES}
        )
    seconds = [sum(r.seconds.values()) for r in repetitions]
    return {
        "bench": NAME,
        "quick": options.quick,
        "repetitions": count,
        "runs_each": 2 * sizes.each,
        "holds_each": sizes.fits,
        "hold_usd": str(sizes.hold),
        "holds": sum(len(r.fates) for r in repetitions),
        "violations": len(violations),
        "violation_kinds": dict(kinds),
        "workspace_writes": writes,
        "reads_checked": sum(r.book.reads for r in repetitions),
        "versions_checked": sum(len(r.book.versions) for r in repetitions),
        "charged_usd": str(sum((r.charged for r in repetitions), Decimal(0))),
        "kills": harm.kills,
        "leaders_killed": harm.leaders_killed,
        "takeovers": harm.takeovers,
        "ended_by_themselves": harm.ended_by_themselves,
        "operator_errors": len(errors),
        "repetition_s": round(statistics.median(seconds), 1) if seconds else None,
        "phases_s": phases(repetitions),
        "total_s": round(time.monotonic() - begun, 1),
        "targets": targets,
        "met": all(target["met"] for target in targets),
    }


class Bench:
    """The repetitions, of which several may run at once."""

    def __init__(self, stand: Stand, api: Api, player: Player, harm: Harm, sizes: Sizes, seed: int) -> None:
        self._stand, self._api, self._player, self._harm = stand, api, player, harm
        self._sizes, self._seed = sizes, seed
        self.repetitions: list[Repetition] = []
        self.failed: list[Violation] = []

    def calm(self) -> int:
        """One that nobody is killed in: how often the Workspace was written until all of its runs were decided."""
        repetition = self._made(0)
        audit = AuditLog(self._stand.home.audit_log, repetition.room.namespace)
        offset = audit.end()
        found: list[int] = []

        def counted() -> None:
            found.append(writes_to_workspace(audit, offset))

        repetition.after_count = counted
        self._done(0, repetition)
        return found[0] if found else -1

    def once(self, number: int) -> None:
        try:
            self._done(number, self._made(number))
        except (AssertionError, RuntimeError, KeyError, Refused) as error:
            # Not even the namespace could be made ready: what cannot be proven counts as wrong.
            self.failed.append(Violation("Harness", f"repetition {number}", repr(error)))
            say(f"{number}: {self.failed[-1]}")

    def _made(self, number: int) -> Repetition:
        room = Room(self._api, self._sizes.hold * self._sizes.fits)
        chance = random.Random(f"{self._seed}/{number}")
        return Repetition(room, self._player, self._sizes, chance, self._harm.written)

    def _done(self, number: int, repetition: Repetition) -> None:
        repetition.run()
        self.repetitions.append(repetition)
        found = repetition.book.violations
        name, seconds = repetition.room.namespace, repetition.seconds
        say(
            f"{number}: {name}: {len(found)} violations, {sum(seconds.values()):.1f} s {seconds}, kills {self._harm.kills}"
        )
        for violation in found:
            say(f"  {violation}")

    def all_violations(self) -> list[Violation]:
        """Those of the repetitions, and the namespaces that did not go."""
        for repetition in self.repetitions:
            room, end = repetition.room, time.monotonic() + GONE_SECONDS
            # What failed is left as it is, to look at.
            if repetition.closed:
                while not room.is_gone() and time.monotonic() < end:
                    time.sleep(0.5)
                if not room.is_gone():
                    status = (self._api.get(f"/api/v1/namespaces/{room.namespace}") or {}).get("status")
                    repetition.book.says("NamespaceStays", f"after {GONE_SECONDS:.0f} s: {status}")
                    say(f"  {repetition.book.violations[-1]}")
        return self.failed + [violation for repetition in self.repetitions for violation in repetition.book.violations]


def worth(api: Api, player: Player, options: argparse.Namespace) -> Sizes:
    """Have the operator hold for one run of each kind: what a TrainingJob's is, a GrpoRun's budget is set to make equal."""
    room = Room(api, Decimal(1000))
    hold = held_for(room, room.make(a_training_job("job")))
    rate = price({"usdPerHour": str(PRICE["usdPerHour"]), "markup": str(PRICE["markup"])})
    reward = hold - rounded_up(rate * GRPO_HOURS)
    found = held_for(room, room.make(a_grpo_run("grpo", reward)))
    if found != hold:
        raise RuntimeError(f"a GrpoRun of {reward} USD for rewards holds {found} USD, and a TrainingJob {hold}")
    room.leave()
    return Sizes(options.each, options.fits, hold, reward)


def held_for(room: Room, run: dict[str, Any]) -> Decimal:
    uid, found = run["metadata"]["uid"], {}

    def is_held() -> bool:
        found.update(((room.workspace() or {}).get("status") or {}).get("holds", {}))
        return uid in found

    eventually(is_held, f"{run['kind']} {run['metadata']['name']} of {room.namespace} has a hold", 60)
    return Decimal(found[uid]["amount"])


def writes_to_workspace(audit: AuditLog, offset: int) -> int:
    requests = audit.since(offset)
    return sum(count for (_, what), count in requests.writes.items() if what.split()[1].split("/")[0] == "workspaces")


def phases(repetitions: list[Repetition]) -> dict[str, float]:
    """The median seconds of each phase."""
    found: dict[str, list[float]] = {}
    for repetition in repetitions:
        for phase, seconds in repetition.seconds.items():
            found.setdefault(phase, []).append(seconds)
    return {phase: round(statistics.median(seconds), 1) for phase, seconds in found.items()}


def table(result: dict[str, Any]) -> str:
    columns = {
        "repetitions": "repetitions",
        "runs_each": "runs of each",
        "holds_each": "of which the wallet is for",
        "holds": "holds in all",
        "violations": "violations",
        "versions_checked": "versions of the book checked",
        "kills": "kills",
        "leaders_killed": "of a leader",
        "takeovers": "takeovers",
        "workspace_writes": "writes to the Workspace for all starts",
        "repetition_s": "a repetition, s",
    }
    rows = [list(columns.values()), ["---:"] * len(columns)]
    rows.append(["–" if result[name] is None else f"{result[name]:g}" for name in columns])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
