"""What a run is seen as, held or refused and rightly so, and the ways in which one may end."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from decimal import Decimal

from tests.api import pods
from tests.api.client import Object

from halo_api.conditions import Reason
from halo_api.report import Outcome

from .player import Script

ENDS_WITHIN = 8.0
FREE = re.compile(r"([\d.]+)(?: USD)? free")


def condition(run: Object, type_: str) -> Object:
    found = run.get("status", {}).get("conditions", [])
    return next((c for c in found if c["type"] == type_), {"status": "", "reason": "", "message": ""})


def is_held(run: Object) -> bool:
    return bool(condition(run, "Reserved")["status"] == "True")


def is_decided(run: Object) -> bool:
    return is_held(run) or bool(condition(run, "Failed")["status"] == "True")


def name_of(run: Object) -> str:
    return str(run["metadata"]["name"])


def wrongly_refused(run: Object, hold: Decimal, most_free: Decimal = Decimal(0)) -> str:
    """Say what is wrong with a refusal: while nobody has ended, only a wallet that is all held is too small for an equal hold."""
    failed = condition(run, "Failed")
    found = FREE.search(failed["message"])
    if failed["reason"] != Reason.INSUFFICIENT_FUNDS or not found:
        return f"{failed['reason']}: {failed['message']}"
    if Decimal(found[1]) > most_free or f"{hold.normalize():f} USD" not in failed["message"]:
        return (
            f"it should say that {hold.normalize():f} USD are needed and at most {most_free} free: {failed['message']}"
        )
    return ""


# --- how runs end


def soon(chance: random.Random) -> float:
    return chance.uniform(0, ENDS_WITHIN)


def interrupted(_pod: Object) -> Outcome:
    return pods.failed(Reason.INTERRUPTED, "its node was drained")


def wrong(_pod: Object) -> Outcome:
    return pods.failed(Reason.OUT_OF_MEMORY, "its rows are too long")


def succeeds(chance: random.Random) -> Script:
    return [(soon(chance), pods.trained)]


def fails(chance: random.Random) -> Script:
    return [(soon(chance), wrong)]


def goes_on(chance: random.Random) -> Script:
    """Interrupted once; what its attempts used is counted together."""
    return [(soon(chance) / 2, interrupted), (soon(chance) / 2, pods.trained)]


FATES: dict[str, tuple[int, Callable[[random.Random], Script]]] = {
    "succeeds": (4, succeeds),
    "fails": (2, fails),
    "goes on": (2, goes_on),
    "deleted": (2, succeeds),
}
OUTCOMES = {
    "succeeds": Reason.SUCCEEDED,
    "fails": Reason.OUT_OF_MEMORY,
    "goes on": Reason.SUCCEEDED,
    "deleted": Reason.CANCELLED,
}
