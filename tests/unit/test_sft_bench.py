"""The bench of sft: what it makes of its sides' steps, and that both sides are given the same to do."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hack.bench.pace.curves import drawn
from hack.bench.pace.figures import compared, fastest, speed, targets
from hack.bench.pace.rows import AgentRuns, Chats, balanced_packs, chat_rows, conversations, step_rows
from hack.bench.pace.sides import Side, Step
from hypothesis import given
from hypothesis import strategies as st

WORDS = [f"w{index}" for index in range(50)]


def side(name: str, *steps: tuple[float, float, float], peak: float = 100.0, failed: str = "") -> Side:
    """A side that has done steps of so many seconds, CPU seconds and loss, each of 10 tokens of which 6 train."""
    found = Side(name, None, None, None, failed=failed)  # type: ignore[arg-type]
    found.steps = [Step(seconds, busy) for seconds, busy, _ in steps]
    found.losses = [loss for _, _, loss in steps]
    found.tokens, found.trained = [10] * len(steps), [6] * len(steps)
    found.peak_mib = peak
    return found


def test_each_step_is_held_against_the_other_sides_of_its_round() -> None:
    """The first is warm-up; of the clock a busy machine decides, so on a CPU the thread's own time does."""
    ours = side("Halo", (9, 9, 3.0), (1, 1, 2.0), (8, 2, 1.0), (1, 1, 0.5), peak=80)
    theirs = side("TRL", (9, 9, 3.0), (2, 2, 2.5), (8, 6, 1.0), (2, 1.5, 0.5))
    found = compared(ours, theirs, 1, gpu=False)
    assert (found["ratio"], found["ratio_range"], found["clock_ratio"]) == (2.0, [1.5, 3.0], 2.0)
    assert (found["memory_ratio"], found["loss_max_difference"]) == (0.8, 0.5)
    assert compared(ours, theirs, 1, gpu=True)["ratio_range"] == [1.0, 2.0]
    assert speed(ours, 1)["trained_tokens_per_s"] == 1.8
    assert speed(ours, 1)["cpu_p50_s"] == 1


def test_the_fastest_of_those_that_did_not_fail_is_compared() -> None:
    slow, fast = side("a", (1, 1, 1), (9, 3, 1)), side("b", (1, 1, 1), (8, 4, 1))
    failed = side("c", (1, 1, 1), (1, 1, 1), failed="out of memory")
    assert fastest([slow, fast, failed], 1, gpu=False) is slow
    assert fastest([slow, fast, failed], 1, gpu=True) is fast
    assert fastest([failed], 1, gpu=False) is None
    assert speed(failed, 1) == {"failed": "out of memory"}


@pytest.mark.parametrize(
    ("case", "found", "met"),
    [
        ("chat", {"ratio": 1.3, "memory_ratio": 1.0}, [True, True]),
        ("chat", {"ratio": 1.29, "memory_ratio": 1.01}, [False, False]),
        ("agent", {"ratio": 2.9, "memory_ratio": 0.5}, [False, True]),
        ("agent", {"ratio": 3.1, "memory_ratio": 0.5, "mfu": 0.1}, [True, True]),
        ("chat", {"ratio": 1.4, "memory_ratio": 0.5, "mfu": 0.39}, [True, True, False]),
        ("chat", {}, [False, False]),
    ],
)
def test_targets(case: str, found: dict[str, Any], met: list[bool]) -> None:
    assert [target["met"] for target in targets(case, case, 16384, found)] == met


@given(st.lists(st.integers(1, 500), min_size=1, max_size=40), st.integers(1, 6))
def test_packs_have_every_row_once_and_are_alike(lengths: list[int], packs: int) -> None:
    found = balanced_packs(lengths, packs)
    assert sorted(place for pack in found for place in pack) == list(range(len(lengths)))
    filled = [sum(lengths[place] for place in pack) for pack in found]
    assert max(filled) - min(filled) <= max(lengths)


def test_the_steps_of_a_run_begin_with_one_another_and_have_its_answers() -> None:
    talk = conversations(AgentRuns(1, 20, 5, 7), 1, WORDS, 0)[0]
    (whole,), steps = chat_rows([talk]), step_rows([talk])
    assert len(steps) == AgentRuns.steps == len(talk) // 2
    for before, after in itertools.pairwise(steps):
        assert after["messages"][: len(before["messages"]) + 1] == [*before["messages"], before["answer"]]
    assert [*steps[-1]["messages"], steps[-1]["answer"]] == whole["messages"]
    assert {row["run"] for row in steps} == {"run-0"}


def test_chats_are_mostly_answers_and_no_longer_than_they_may_be() -> None:
    case, chance = Chats(8, 180, 500), random.Random(0)
    turns = [case.turns(chance) for _ in range(300)]
    assert max(sum(map(sum, talk)) for talk in turns) <= 500
    asked, answered = (sum(turn[part] for talk in turns for turn in talk) for part in (0, 1))
    assert 0.5 < answered / (asked + answered) < 0.8


def test_losses_are_drawn_over_each_other_and_to_the_same_bytes() -> None:
    case = {"case": "chat", "ours": "Halo", "theirs": "TRL packed", "loss_max_difference": 1e-6}
    cases = [case | {"losses": [[2.0, 2.0], [1.5, 1.5]]}, case | {"case": "agent", "losses": [[3.0, 3.0]]}]
    assert drawn(cases) == drawn(cases)
    assert b"<svg" in drawn(cases)
