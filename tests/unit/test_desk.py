"""The desk: what runs ask of their Workspace, newest first, until it is decided."""

from __future__ import annotations

from halo_api.ledger import Rate, RunRef
from halo_operator.desk import Desk
from halo_operator.plan.wishes import Ended, Wanted
from halo_operator.queue import Key
from tests.unit.builders import NOW

RATE = Rate(gpu_class="h100", usd_per_hour="2.5", markup="1.2", h100_equivalent="1")


def ref(uid: str) -> RunRef:
    return RunRef(kind="TrainingJob", name=f"run-{uid}", uid=uid)


def wanted(uid: str, amount: int = 10) -> Wanted:
    return Wanted(ref(uid), NOW, "USD", amount, RATE)


def ended(uid: str, used: int = 5) -> Ended:
    return Ended(ref(uid), used, 1000, "Succeeded")


def desk() -> tuple[Desk, list[Key]]:
    woken: list[Key] = []
    return Desk(woken.append), woken


def test_what_is_asked_wakes_the_workspace_of_its_namespace() -> None:
    at, woken = desk()
    at.ask("team", wanted("a"))
    at.ask("other", ended("b"))
    assert woken == [Key("Workspace", "team", "workspace"), Key("Workspace", "other", "workspace")]
    assert at.asked("team") == ((wanted("a"),), ())
    assert at.asked("other") == ((), (ended("b"),))
    assert at.asked("nobody") == ((), ())


def test_the_newest_wish_of_a_run_counts_and_its_end_counts_for_good() -> None:
    at, _ = desk()
    for one in (wanted("a", 10), wanted("a", 12), wanted("b"), ended("b", 1), ended("b", 2), wanted("b")):
        at.ask("team", one)
    assert at.asked("team") == ((wanted("a", 12),), (ended("b", 2),))


def test_what_was_replaced_while_it_was_decided_stays() -> None:
    at, _ = desk()
    at.ask("team", wanted("a"))
    at.ask("team", wanted("b"))
    (first, second), _ = at.asked("team")
    at.ask("team", ended("a"))
    # Asked again in the same words: that is the wish that was decided.
    at.ask("team", wanted("b"))
    at.decided("team", (first, second))
    assert at.asked("team") == ((), (ended("a"),))
    at.decided("team", at.asked("team")[1])
    assert at.asked("team") == ((), ())
    at.decided("team", (first,))


def test_it_knows_how_long_a_run_waits_whatever_it_asks_meanwhile() -> None:
    time = [100.0]
    at = Desk(lambda key: None, lambda: time[0])
    at.ask("team", wanted("a"))
    time[0] = 107.0
    at.ask("team", wanted("a", 12))
    assert (at.seconds("team", "a"), at.seconds("team", "b"), at.seconds("other", "a")) == (7.0, 0.0, 0.0)
    at.decided("team", at.asked("team")[0])
    assert at.seconds("team", "a") == 0.0
