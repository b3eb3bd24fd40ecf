"""Which tasks steps take, how missing groups are refilled, and what of it a checkpoint keeps and other processes are sent."""

from __future__ import annotations

from array import array

from hypothesis import given
from hypothesis import strategies as st

from halo_trainer.data.template import TokenRow
from halo_trainer.environments.base import Task
from halo_trainer.rl.frontier import FRONTIER, GROUPS, Frontier, frontier_files, frontier_of
from halo_trainer.rl.scoring import Sampled
from halo_trainer.rl.tasks import Refill, step_groups, wanted_tasks
from halo_trainer.rl.wire import rows_from_bytes, rows_to_bytes
from halo_trainer.rollouts.engine import Group, Wanted
from halo_trainer.rollouts.episode import Episode, Turn


def tasks(count: int) -> list[Task]:
    return [Task(f"t{number}", "sql", {"n": number}, ("easy",)) for number in range(count)]


def played(wanted: list[Wanted]) -> list[Group]:
    return [Group(each, (), ()) for each in wanted]


@given(st.integers(1, 9), st.integers(0, 3), st.integers(0, 40), st.integers(1, 20))
def test_the_stream_has_each_task_once_an_epoch_wherever_it_is_cut(
    count: int, seed: int, first: int, more: int
) -> None:
    every = wanted_tasks(tasks(count), seed, 0, first + more)
    assert wanted_tasks(tasks(count), seed, first, more) == every[first:]
    assert len({(each.round, each.task.id) for each in every}) == len(every)
    assert [each.round for each in every] == [each.place // count for each in every]


@given(st.lists(st.booleans(), min_size=60, max_size=60), st.integers(1, 6), st.integers(1, 8), st.integers(0, 20))
def test_equal_groups_are_replaced_until_there_are_enough_or_the_rounds_are_over(
    teaches: list[bool], wanted: int, rounds: int, cursor: int
) -> None:
    """No place is left out or taken twice, and no group that teaches is left over for a later step, an older policy's by then."""
    asked: list[list[int]] = []

    def sample(drawn: list[Wanted]) -> list[Group]:
        asked.append([each.place for each in drawn])
        return played(drawn)

    found = step_groups(
        sample,
        lambda group: teaches[(group.wanted.place - cursor) % 60],
        lambda first, count: wanted_tasks(tasks(7), 0, first, count),
        cursor,
        Refill(wanted, rounds),
    )
    places = [place for each in asked for place in each]
    assert places == list(range(cursor, found.cursor))
    assert sorted(group.wanted.place for group in found.teaching + found.dropped) == places
    assert len(found.teaching) <= wanted
    assert len(found.teaching) == wanted or len(asked) == rounds
    assert len(asked) <= rounds
    # A step that has enough asks for nothing more.
    assert all(each for each in asked)


def turn(routes: bytes | None = None) -> Turn:
    return Turn(array("i", [1, 2]), array("i", [3]), array("d", [-0.1 / 3]), 5, "run-s5", 0, "stop", routes)


def test_a_checkpoint_keeps_the_frontier_and_what_was_sampled_beyond_it() -> None:
    """To the last bit of a log-probability: what is trained after a resume is what would have been trained."""
    scored = Episode("t1", 0, (turn(b"\0\1"), turn()), 0.5, False, checks={"a": True}, messages=({"role": "user"},))
    lost = Episode("t1", 1, (), failure="TimedOut", detail="it took long")
    groups = [Group(Wanted(tasks(2)[1], 3, place), (scored,), (lost,)) for place in (8, 7)]
    files = frontier_files(Frontier(7, 5, 40, 400), groups)
    frontier, found = frontier_of(files[FRONTIER], files[GROUPS])
    assert frontier == Frontier(7, 5, 40, 400)
    assert found == sorted(groups, key=lambda group: group.wanted.place)


@given(st.lists(st.lists(st.integers(0, 2**31 - 1), min_size=2, max_size=9), max_size=4))
def test_rows_reach_other_processes_as_they_are(ids: list[list[int]]) -> None:
    rows = [
        Sampled(TokenRow(array("i", each), bytearray([0] + [1] * (len(each) - 1))), *(array("d", [x] * (len(each) - 1)) for x in (-0.1 / 3, 1.5, 1 / 7)))
        for each in ids
    ]  # fmt: skip
    assert rows_from_bytes(rows_to_bytes(rows)) == rows
