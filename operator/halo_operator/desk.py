"""The desk between runs and their Workspace: what runs ask for lies here until the Workspace's own reconcile decides it.

Nothing is stored: a run whose wish was lost with the process asks again at its next look, and asking twice holds once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from halo_api.workspace import WORKSPACE
from halo_operator.plan.wishes import Ended, Wanted
from halo_operator.queue import Key

Asked = Wanted | Ended


class Desk:
    """Keeps the newest thing asked for each run; one that is over wants nothing any more."""

    def __init__(self, wake: Callable[[Key], None], monotonic: Callable[[], float] = time.monotonic) -> None:
        """`wake` has a Workspace reconciled."""
        self._wake = wake
        self._monotonic = monotonic
        self._asked: dict[str, dict[str, Asked]] = {}
        self._since: dict[str, float] = {}

    def ask(self, namespace: str, one: Asked) -> None:
        """Ask the namespace's Workspace to hold or to settle."""
        there = self._asked.setdefault(namespace, {})
        before = there.get(one.run.uid)
        if one != before and not (isinstance(before, Ended) and isinstance(one, Wanted)):
            there[one.run.uid] = one
            self._since.setdefault(one.run.uid, self._monotonic())
        self._wake(Key("Workspace", namespace, WORKSPACE))

    def seconds(self, namespace: str, uid: str) -> float:
        """Return for how long a run's wish waits to be decided."""
        waits = uid in self._asked.get(namespace, {})
        return self._monotonic() - self._since[uid] if waits else 0.0

    def asked(self, namespace: str) -> tuple[tuple[Wanted, ...], tuple[Ended, ...]]:
        """Return what is asked for and not decided."""
        there = tuple(self._asked.get(namespace, {}).values())
        return tuple(a for a in there if isinstance(a, Wanted)), tuple(a for a in there if isinstance(a, Ended))

    def decided(self, namespace: str, those: Iterable[Asked]) -> None:
        """Forget exactly these: what was asked instead of one of them meanwhile is not decided yet."""
        there = self._asked.get(namespace, {})
        for one in those:
            if there.get(one.run.uid) is one:
                del there[one.run.uid]
                self._since.pop(one.run.uid, None)
        if not there:
            self._asked.pop(namespace, None)
