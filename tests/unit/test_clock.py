"""The operator's time is the API server's: a clock that is off, or that steps while it runs, changes nothing."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from halo_operator.clock import LISTEN_SECONDS, ServerClock

# Between two whole seconds, as most answers are.
START = datetime(2026, 11, 29, 12, 0, 0, 700_000, UTC)


@dataclass
class Machine:
    """A machine and an API server whose clocks differ by `ahead` seconds; the monotonic one began at some other number."""

    ahead: float = 0.0
    passed: float = 0.0
    clock: ServerClock = field(init=False)

    def __post_init__(self) -> None:
        self.clock = ServerClock(self.local, lambda: 1234.5 + self.passed)

    @property
    def server(self) -> datetime:
        return START + timedelta(seconds=self.passed)

    def local(self) -> datetime:
        return self.server + timedelta(seconds=self.ahead)

    def ask(self, takes: float = 0.02) -> bool:
        """Ask the server, and return whether the answer's date was looked at."""
        asked = self.clock.asking()
        self.passed += takes
        self.clock.answered(asked, format_datetime(self.server, usegmt=True))
        return asked is not None

    def off(self) -> float:
        """By how many seconds the operator's time differs from the server's."""
        return abs((self.clock.now() - self.server).total_seconds())


@pytest.mark.parametrize("ahead", [300.0, -300.0, 2.9, -2.9])
def test_a_clock_that_is_off_is_corrected(ahead: float) -> None:
    machine = Machine(ahead)
    assert machine.off() == pytest.approx(abs(ahead))
    machine.ask()
    assert machine.off() <= 0.6
    assert machine.clock.error == pytest.approx(-ahead, abs=0.6)


@pytest.mark.parametrize("ahead", [0.0, 1.4, -1.4])
def test_one_that_is_right_is_left_alone(ahead: float) -> None:
    machine = Machine(ahead)
    for _ in range(50):
        machine.ask()
        machine.passed += 0.37
        assert machine.clock.now() == machine.local()


def test_a_step_is_corrected_before_the_server_is_asked_again() -> None:
    machine = Machine()
    machine.ask()
    machine.passed += 1
    machine.ahead = -300
    assert machine.off() <= 0.6
    machine.ahead = 0
    assert machine.off() == 0


def test_the_server_s_own_step_is_seen_at_the_next_look() -> None:
    machine = Machine()
    assert machine.ask()
    assert not machine.ask()
    machine.passed += LISTEN_SECONDS
    assert machine.ask()


def test_a_slow_answer_and_one_without_a_date_say_nothing() -> None:
    machine = Machine(300)
    machine.ask(takes=5)
    machine.clock.answered(machine.clock.asking(), None)
    machine.clock.answered(machine.clock.asking(), "yesterday")
    assert machine.clock.error == 0
