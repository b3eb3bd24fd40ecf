"""Whatever stands in a data set, it trains or is refused with its line: random damage to good rows, read as an inspection does."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from agent_runs import LOOK, THINKER, call, said, step
from hypothesis import given, settings
from hypothesis import strategies as st
from trainer_support import CHATML, chat, make_tokenizer

from halo_api.conditions import Reason
from halo_trainer.data.load import row_check, token_row
from halo_trainer.data.template import Template
from halo_trainer.failures import RunFailure

CALLED = said("assistant", "", tool_calls=[call("look", {"at": "sky"})])
TALK = [said("system", "Be brief."), said("user", "Colour of the sky?"), CALLED, said("tool", "blue")]
GOOD: dict[str, tuple[str, dict[str, Any]]] = {
    "chat": ("chat", {"messages": [*TALK, said("assistant", "Blue.", reasoning_content="Hm.", weight=1)], "tools": [LOOK]}),
    "step": ("chat", step("a", TALK, said("assistant", "Blue."), tools=[LOOK], chat_template_kwargs={"enable_thinking": False})),
    "pair": ("preference", {"messages": TALK, "chosen": "Blue.", "rejected": "Green.", "tools": [LOOK]}),
    "plain": ("chat", chat("Colour of the sky?", "Blue.")),
}  # fmt: skip
Text = st.text(st.characters(exclude_categories=()), max_size=6)
Json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | Text | st.sampled_from(["assistant", "tool", "look"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(Text, inner, max_size=3),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return the paths of all values within one, its own first."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, part in inner for found in places(part, (*path, key)))]


@st.composite
def damaged(draw: st.DrawFn, row: dict[str, Any]) -> Any:
    """Return the row with one to three of its values replaced, left out, doubled or moved."""
    row = copy.deepcopy(row)
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(places(row)))
        if not path:
            return draw(Json)
        holder = row
        for key in path[:-1]:
            holder = holder[key]
        how = draw(st.sampled_from(["replace", "leave out", "double", "move"]))
        if how == "replace":
            holder[path[-1]] = draw(Json)
        elif isinstance(holder, list):
            value = holder[path[-1]] if how == "double" else holder.pop(path[-1])
            if how != "leave out":
                holder.insert(draw(st.integers(0, len(holder))), value)
        elif how == "leave out":
            del holder[path[-1]]
        else:
            holder[draw(st.sampled_from([*map(str, holder), "chosen", "answer", "run"]))] = holder[path[-1]]
        if not row:
            break
    return row


@pytest.fixture(scope="module")
def templates() -> list[Template]:
    return [Template(make_tokenizer(template), "tiny") for template in (THINKER, CHATML)]


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("rows", [pytest.param(50, id="few"), pytest.param(500, marks=pytest.mark.slow, id="many")])
def test_a_row_trains_or_is_refused_with_its_line(name: str, rows: int, templates: list[Template]) -> None:
    @settings(max_examples=rows, deadline=None)
    @given(damaged(GOOD[name][1]))
    def reads(row: Any) -> None:
        read(GOOD[name], row, templates)

    reads()


def read(of: tuple[str, dict[str, Any]], row: Any, templates: list[Template]) -> None:
    kind, good = of
    # As a file has it: what JSON can't say is not there.
    line = json.loads(json.dumps(row))
    for template in templates:
        check = row_check(kind)
        check(1, good)
        refused, found = outcome(lambda: token_row(template, check(2, line)))  # noqa: B023
        if refused:
            assert refused.reason in (Reason.BAD_ROW, Reason.TEMPLATE_MISMATCH)
            assert re.match(r"line \d[ :].*; ", str(refused), re.DOTALL), str(refused)
        else:
            assert found.trained_tokens > 0


def outcome(work: Callable[[], Any]) -> tuple[RunFailure | None, Any]:
    """Return the refusal, or what was found."""
    try:
        return None, work()
    except RunFailure as refused:
        return refused, None
