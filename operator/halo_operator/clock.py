"""The API server's clock, as its answers tell it: deadlines and charges are counted on the clock that dates the objects."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

# A Date header says the second only, so that a smaller error can't be told from none.
TOLERATED_SECONDS = 2.0
LISTEN_SECONDS = 10.0
# An answer that took longer says too little of when it was dated.
PROMPT_SECONDS = 1.0


def wall() -> datetime:
    """Return the time by this machine's clock."""
    return datetime.now(UTC)


class ServerClock:
    """This machine's clock where it agrees with the API server's within two seconds, and the server's where it does not.

    Between two looks the server's time is counted on by the monotonic clock, so that a step of this machine's clock is
    corrected the moment it happens.
    """

    def __init__(self, local: Callable[[], datetime] = wall, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._local = local
        self._monotonic = monotonic
        # The server's time at zero of the monotonic clock, and when it was last listened to.
        self._zero: datetime | None = None
        self._heard = float("-inf")

    def asking(self) -> float | None:
        """Return the moment that a request is sent, or None where its answer's date is not worth a look."""
        at = self._monotonic()
        return at if at - self._heard >= LISTEN_SECONDS else None

    def answered(self, asked: float | None, date: str | None) -> None:
        """Take the Date header of an answer to a request of that moment."""
        if asked is None or date is None:
            return
        at = self._monotonic()
        if at - asked > PROMPT_SECONDS:
            return
        try:
            said = parsedate_to_datetime(date)
        except ValueError:
            return
        # The middle of the second that it names, and of the time that the answer took.
        self._zero = said.astimezone(UTC) + timedelta(seconds=0.5 - (asked + at) / 2)
        self._heard = at

    @property
    def error(self) -> float:
        """By how many seconds this machine's clock is behind the server's; negative where it is ahead, 0 until an answer came."""
        if self._zero is None:
            return 0.0
        return (self._zero + timedelta(seconds=self._monotonic()) - self._local()).total_seconds()

    def now(self) -> datetime:
        """Return the time by the server's clock."""
        error, local = self.error, self._local()
        return local if abs(error) <= TOLERATED_SECONDS else local + timedelta(seconds=error)
