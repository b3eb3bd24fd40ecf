"""`kubectl halo estimate -f FILE`: what runs would take, as the cluster's own webhook quotes them; nothing is made."""

from __future__ import annotations

from collections.abc import Callable

from halo_cli.dry_run import Said, ask, runs_in
from halo_cli.kubectl import Kubectl, Object

NO_QUOTE = (
    "no quote: Halo's webhook did not answer; the chart's value webhook.enabled turns it on "
    "(kubectl get validatingwebhookconfigurations)"
)


def estimate(kubectl: Kubectl, file: str, say: Callable[[str], None]) -> int:
    """Say the quote of each run in the file; return 0 if every one has one, and 1 else."""
    code = 0
    for body in runs_in(kubectl, file):
        said = ask(kubectl, body)
        say(f"{body['kind']} {name_of(body)}")
        for line in lines(said):
            say(f"  {line}")
        if not said.quote or said.refusal:
            code = 1
    return code


def lines(said: Said) -> list[str]:
    """Return the answer, a fact a line."""
    found = [*said.quote, *said.others]
    if said.refusal:
        return [*found, f"refused{f' ({said.reason})' if said.reason else ''}: {said.refusal}"]
    if said.exists:
        found.append("a run of this name exists already; its own quote stands in its status.estimate")
    elif not said.quote:
        found.append("no quote yet: the run would wait" if said.others else NO_QUOTE)
    return found


def name_of(body: Object) -> str:
    """Return the run's name, or what the API server would make it from."""
    meta = body.get("metadata", {})
    return str(meta.get("name") or f"{meta.get('generateName', '')}…")
