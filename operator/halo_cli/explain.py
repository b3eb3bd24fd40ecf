"""`kubectl halo explain-refusal`: why a run was refused, failed or waits, or would be, and what the documentation says of it."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from typing import Any

from halo_api.conditions import ConditionType, Reason
from halo_cli.dry_run import ask, runs_in
from halo_cli.estimate import name_of
from halo_cli.kubectl import CliError, Kubectl, NotThere
from halo_cli.reasons import reasons

KINDS = {
    "trainingjob": "TrainingJob", "trainingjobs": "TrainingJob", "tj": "TrainingJob",
    "grporun": "GrpoRun", "grporuns": "GrpoRun", "grpo": "GrpoRun",
    "dataset": "Dataset", "datasets": "Dataset", "dset": "Dataset",
}  # fmt: skip
PLURALS = {"TrainingJob": "trainingjobs", "GrpoRun": "grporuns", "Dataset": "datasets"}
WIDTH = 100
T = ConditionType


def explain(kubectl: Kubectl, target: str, say: Callable[[str], None]) -> int:
    """Explain one object, named KIND/NAME; return 1 if it was refused or failed, else 0."""
    word, _, name = target.partition("/")
    kind = KINDS.get(word.lower().removesuffix(".halo.training"))
    if kind is None or not name:
        raise CliError(
            f"found {target!r}; name an object as KIND/NAME, with KIND one of {', '.join(PLURALS)}, or a file with -f"
        )
    try:
        body = kubectl.get(f"{PLURALS[kind]}.halo.training", name)
    except NotThere:
        raise kubectl.absent(kind, name, PLURALS[kind]) from None
    said = told(body.get("status", {}).get("conditions", []))
    if said is None:
        say(f"{kind} {name} was not looked at yet")
        return 0
    state, reason, message = said
    say(f"{kind} {name}: {state}")
    for line in explained(reason, message):
        say(line)
    return 1 if state in (Reason.REFUSED, Reason.FAILED) or is_true(body, T.STALLED) else 0


def explain_file(kubectl: Kubectl, file: str, say: Callable[[str], None]) -> int:
    """Explain what the cluster would say of each run in a file; return 1 if one would be refused."""
    code = 0
    for body in runs_in(kubectl, file):
        said = ask(kubectl, body)
        state = "would be refused" if said.refusal else "would be accepted"
        waits = [warning.removeprefix("waits: ") for warning in said.others if warning.startswith("waits: ")]
        say(f"{body['kind']} {name_of(body)}: {'would wait' if waits and not said.refusal else state}")
        for line in explained(said.reason, said.refusal) if said.refusal else map(indented, waits):
            say(line)
        if said.refusal:
            code = 1
    return code


def told(conditions: list[dict[str, Any]]) -> tuple[str, str, str] | None:
    """Return the state, and the reason and message of the condition that says why."""
    found = {c["type"]: c for c in conditions}
    ready = found.get(T.READY)
    if ready is None:
        return None
    # What speaks of the cause, before what speaks of the state.
    failed, accepted, stalled = found.get(T.FAILED), found.get(T.ACCEPTED), found.get(T.STALLED)
    for why in (failed, stalled):
        if why and why["status"] == "True":
            return ready["reason"], why["reason"], why["message"]
    if accepted and accepted["status"] != "True":
        return ready["reason"], accepted["reason"], accepted["message"]
    scheduled = found.get(T.SCHEDULED)
    if scheduled and scheduled["status"] == "False" and ready["reason"] in (Reason.QUEUED, Reason.STARTING):
        return ready["reason"], scheduled["reason"], scheduled["message"]
    return ready["reason"], ready["reason"], ready["message"]


def explained(reason: str | None, message: str) -> list[str]:
    """Return the message, and what the documentation says of its reason."""
    found = [indented(message)]
    row = reasons().get(reason or "")
    if row:
        found += [indented(f"{row.reason}: {row.meaning}"), indented(f"what to do: {row.cure}")]
    elif reason:
        found.append(indented(f"{reason}: not a reason of this version's documentation"))
    else:
        found.append(indented("the API server's own schema refused it: kubectl explain says what the field takes"))
    return found


def indented(text: str) -> str:
    """Break a sentence into lines, below its heading."""
    return textwrap.fill(text, WIDTH, initial_indent="  ", subsequent_indent="    ", break_long_words=False)


def is_true(body: dict[str, Any], type_: str) -> bool:
    """Whether the object has that condition, True."""
    return any(c["type"] == type_ and c["status"] == "True" for c in body.get("status", {}).get("conditions", []))
