"""One repetition: equal holds asked for at once on a wallet for fewer, the runs' ends, and the book added up again."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from decimal import Decimal
from functools import partial

import urllib3
from tests.api.client import Object, Refused

from .book import Book, cost, price
from .follow import follow
from .player import Player
from .runs import FATES, OUTCOMES, is_decided, is_held, name_of, soon, wrongly_refused
from .stand import Room, a_grpo_run, a_training_job

THREADS = 8
# Far above what it takes while the machine is busy and the leader dies every few seconds.
LIMIT_SECONDS = 600.0
REFUSED_DELETED = 0.1
POLL_SECONDS = 0.25
MICRO = Decimal("0.000001")
HOLD_FINALIZER = "halo.training/hold"
PLURAL = {"TrainingJob": "trainingjobs", "GrpoRun": "grporuns"}


@dataclass(frozen=True)
class Sizes:
    """How many runs of each kind, and for how many the wallet is."""

    each: int
    fits: int
    hold: Decimal
    reward: Decimal


@dataclass
class Repetition:
    """What is known of one, from several threads."""

    room: Room
    player: Player
    sizes: Sizes
    chance: random.Random
    written: Callable[[], None]
    runs: dict[str, Object] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)
    fates: dict[str, str] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    # Called when all are decided and none has ended.
    after_count: Callable[[], None] = lambda: None
    charged: Decimal = Decimal(0)
    closed: bool = False
    _stop: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.book = Book(self.room.namespace, self.room.credit, self.sizes.hold)

    def run(self) -> None:
        """All of it but the namespace's own end; what goes wrong is in the book's violations."""
        self._listen()
        try:
            for phase in (self._ask, self._count, self._end, self._settle, self._add_up, self._close):
                begun = time.monotonic()
                phase()
                self.seconds[phase.__name__.strip("_")] = round(time.monotonic() - begun, 2)
        except TimeoutError as late:
            self.book.says("TooLate", str(late))
        except (Refused, urllib3.exceptions.HTTPError, OSError, LookupError, ValueError) as error:
            self.book.says("Harness", f"{type(error).__name__}: {error}")
        finally:
            self._stop.set()
            self.player.forget(set(self.runs))

    # --- what is seen

    def _listen(self) -> None:
        api, room = self.room.api, self.room
        follow(api, room.path("workspaces"), self._read, self._stop)
        for kind in PLURAL.values():
            follow(api, room.path(kind), self._hear, self._stop)
        threading.Thread(target=self._poll, daemon=True).start()

    def _read(self, type_: str, workspace: Object) -> None:
        if type_ != "DELETED":
            self.book.see(workspace)
        self.written()

    def _hear(self, type_: str, run: Object) -> None:
        uid = run["metadata"]["uid"]
        self.runs[uid] = run
        if type_ == "DELETED":
            self.gone.add(uid)

    def _poll(self) -> None:
        while not self._stop.wait(POLL_SECONDS):
            with suppress(Refused, urllib3.exceptions.HTTPError, OSError):
                if found := self.room.workspace():
                    self.book.see(found)

    # --- the phases

    def _ask(self) -> None:
        """Create them all at once."""
        bodies = [a_training_job(f"job-{n:03}") for n in range(self.sizes.each)]
        bodies += [a_grpo_run(f"grpo-{n:03}", self.sizes.reward) for n in range(self.sizes.each)]
        self.chance.shuffle(bodies)
        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(self.room.make, bodies))

    def _count(self) -> None:
        """Before any run ends, as many hold as the wallet is for; the others are refused, and told why."""
        every = 2 * self.sizes.each
        self._until(lambda: len([r for r in list(self.runs.values()) if is_decided(r)]) == every, self._undecided)
        status = self._status()
        held = {uid for uid, run in self.runs.items() if is_held(run)}
        if len(held) != self.sizes.fits or status["holds"].keys() != held:
            self.book.says(
                "WrongCount", f"{len(held)} runs and {len(status['holds'])} of the book hold, not {self.sizes.fits}"
            )
        if self.book.held_once != held:
            self.book.says("WrongCount", f"{len(self.book.held_once)} had a hold at some time, and {len(held)} hold")
        if Decimal(status["held"]) != self.room.credit or Decimal(status["balance"]) != 0:
            self.book.says("WrongCount", f"held {status['held']}, balance {status['balance']} of {self.room.credit}")
        for uid, run in self.runs.items():
            if uid not in held and (wrong := wrongly_refused(run, self.sizes.hold)):
                self.book.says("WrongRefusal", f"{name_of(run)}: {wrong}")
            if uid in held and Decimal(run["status"]["hold"]["usd"]) != self.sizes.hold:
                self.book.says("WrongHold", f"{name_of(run)}: {run['status']['hold']}")
        if strays := self.player.lives.keys() & self.runs.keys() - held:
            self.book.says("StrayPods", f"pods were made for runs that hold nothing: {sorted(strays)}")
        self.after_count()

    def _end(self) -> None:
        """Have every run that holds end in its own way, delete some that were refused, and make more for what is released."""
        acts: list[tuple[float, Callable[[], object]]] = []
        for uid, run in self.runs.items():
            if is_held(run):
                acts += self._fated(uid, run)
            elif self.chance.random() < REFUSED_DELETED:
                acts.append((soon(self.chance), partial(self._delete, run)))
        late: list[str] = []

        def make(number: int) -> None:
            late.append(self.room.make(a_training_job(f"late-{number:03}"))["metadata"]["uid"])

        acts += [(soon(self.chance), partial(make, number)) for number in range(self.sizes.each // 5)]
        self._do(acts)
        decided = lambda: all(uid in self.runs and is_decided(self.runs[uid]) for uid in late)  # noqa: E731
        self._until(decided, self._undecided)
        acts = []
        for uid in late:
            run = self.runs[uid]
            if is_held(run):
                acts += self._fated(uid, run)
            elif wrong := wrongly_refused(run, self.sizes.hold, self.sizes.hold - MICRO):
                self.book.says("WrongRefusal", f"{name_of(run)}: {wrong}")
        self._do(acts)

    def _fated(self, uid: str, run: Object) -> list[tuple[float, Callable[[], object]]]:
        """Choose how a run ends; return what is to be done for that, and when."""
        fate = self.chance.choices(list(FATES), [weight for weight, _ in FATES.values()])[0]
        self.fates[uid] = fate if run["kind"] == "TrainingJob" else "deleted"
        if self.fates[uid] == "deleted":
            return [(soon(self.chance), partial(self._delete, run))]
        self.player.script(uid, FATES[fate][1](self.chance))
        return []

    def _delete(self, run: Object) -> None:
        self.room.api.delete(self.room.path(PLURAL[run["kind"]], run["metadata"]["name"]))

    def _do(self, acts: list[tuple[float, Callable[[], object]]]) -> None:
        begun = time.monotonic()
        for due, act in sorted(acts, key=lambda one: one[0]):
            time.sleep(max(0.0, begun + due - time.monotonic()))
            act()

    def _settle(self) -> None:
        """Every hold becomes a charge, and nobody is kept."""
        settled = lambda: len(self._status().get("settled", [])) >= len(self.fates) and not self._status().get("holds")  # noqa: E731
        self._until(settled, lambda: f"open at the end: {self._open()}")
        self._until(lambda: not self._kept(), lambda: f"kept by finalizers at the end: {self._kept()}")

    def _add_up(self) -> None:
        """Add the book up again, and what each run used again from the times of its pods."""
        status = self._status()
        entries, spent = status.get("settled", []), Decimal(status["spent"])
        self.charged = spent
        if status.get("held") != "0" or Decimal(status["balance"]) + spent != self.room.credit:
            self.book.says(
                "WrongSum", f"at the end: held {status.get('held')}, balance {status['balance']}, spent {spent}"
            )
        if {entry["run"]["uid"] for entry in entries} != self.fates.keys():
            self.book.says("WrongEntry", f"{len(entries)} are settled, and {len(self.fates)} held")
        if self.book.held_once != self.fates.keys():
            self.book.says(
                "WrongCount", f"{len(self.book.held_once)} had a hold, and {len(self.fates)} were seen to hold"
            )
        for entry in entries:
            uid = entry["run"]["uid"]
            lives = self.player.lives.get(uid, [])
            seconds = sum(life.gpu_seconds for life in lives)
            used = cost(seconds, price(entry["rate"]))
            if Decimal(entry["used"]) != used or Decimal(entry["gpuSeconds"]) != seconds:
                words = f"used {entry['used']} for {entry['gpuSeconds']} s, and its pods make {used} for {seconds} s: {lives}"
                self.book.says("WrongUse", f"{entry['run']['name']}: {words}")
            if Decimal(entry["held"]) != self.sizes.hold:
                self.book.says("WrongHold", f"{entry['run']['name']}: settled of {entry['held']}")
            if (outcome := OUTCOMES[self.fates.get(uid, "deleted")]) != entry["outcome"]:
                self.book.says("WrongOutcome", f"{entry['run']['name']}: {entry['outcome']}, and it was {outcome}")
            if uid not in self.gone:
                self._agrees(self.runs[uid], entry)

    def _agrees(self, run: Object, entry: Object) -> None:
        said = run["status"].get("usage", {}).get("settlement") or {}
        for figure in ("unit", "held", "used", "charged", "overrun"):
            if said.get(figure) != entry[figure]:
                self.book.says("WrongSettlement", f"{name_of(run)} says {said}, and the book {entry}")
                return

    def _close(self) -> None:
        """Delete the Workspace: all its entries are in its pages before it goes; then the namespace can go."""
        entries = self._status().get("settled", [])
        self.room.api.delete(self.room.path("workspaces", "workspace"))
        self._until(lambda: self.room.workspace() is None, lambda: "the Workspace is deleted and stays")
        found = sorted(self.room.api.items(self.room.path("ledgerpages")), key=lambda page: page["spec"]["page"])
        if [entry for page in found for entry in page["spec"]["entries"]] != entries:
            self.book.says("EntryLost", f"{len(entries)} entries, and {len(found)} pages that have not all of them")
        elif found:
            charged = sum((Decimal(entry["charged"]) for entry in entries), Decimal(0))
            if Decimal(found[-1]["spec"]["totals"]["spentUsd"]) != charged:
                self.book.says(
                    "WrongSum", f"the last page says {found[-1]['spec']['totals']}, and {charged} was charged"
                )
        self.room.leave()
        self.closed = True

    # --- what is asked

    def _status(self) -> Object:
        found = self.room.workspace()
        if found is not None:
            self.book.see(found)
        return dict((found or {}).get("status", {}))

    def _kept(self) -> list[str]:
        """Runs that are settled, or were refused, and still have our finalizer; pods of theirs that were not let go."""
        found = [run for kind in PLURAL.values() for run in self.room.api.items(self.room.path(kind))]
        kept = [run for run in found if HOLD_FINALIZER in run["metadata"].get("finalizers", ())]
        return [
            run["metadata"]["name"]
            for run in kept + [p for p in self.room.all_pods() if p["metadata"].get("finalizers")]
        ]

    def _open(self) -> list[str]:
        status = self._status()
        return [f"{hold['run']['name']} ({self.fates.get(uid)})" for uid, hold in status.get("holds", {}).items()]

    def _undecided(self) -> str:
        found = [run for run in self.runs.values() if not is_decided(run)]
        words = [f"{name_of(run)}: {run.get('status', {}).get('waiting')}" for run in found[:5]]
        holds = len(self._status().get("holds", {}))
        return f"{len(found)} of {len(self.runs)} neither hold nor are refused, {holds} holds: {words}"

    def _until(self, holds: Callable[[], bool], what: Callable[[], str]) -> None:
        end = time.monotonic() + LIMIT_SECONDS
        while not holds():
            if time.monotonic() > end:
                raise TimeoutError(f"not within {LIMIT_SECONDS:.0f} s: {what()}")
            time.sleep(0.2)
