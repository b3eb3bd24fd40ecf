"""The process that takes a run's metrics to Weights & Biases: lines of them come by standard input, until its end.

All attempts of a Halo run are one run of W&B's, which has each step once: what a later attempt repeats is there already. A server
that does not answer is tried again until the run ends; the steps until then are kept.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import Any, BinaryIO

from halo_api.metrics_history import StepMetrics, parsed
from halo_api.run_file import WandbPlan
from halo_api.tracking import API_KEY_VARIABLE
from halo_trainer import budget
from halo_trainer.history import scalars

# From the end of the metrics to the end of the process, whatever the server does.
LAST_SECONDS = 8.0
# How long a server is waited for, and then left alone.
ANSWER_SECONDS = 30.0
AGAIN_SECONDS = 30.0


def begin(plan: WandbPlan, config: dict[str, Any]) -> bytes:
    """Return the first line, which says what run of W&B's it is, and with what settings."""
    return json.dumps({"plan": plan.to_json(), "config": config}).encode() + b"\n"


class Incoming:
    """The lines, read as they come, so that the trainer's pipe is never full."""

    def __init__(self, lines: BinaryIO) -> None:
        first = json.loads(lines.readline())
        self.plan, self.config = WandbPlan.model_validate(first["plan"]), first["config"]
        self.over = threading.Event()
        self._lines = lines
        self._steps: queue.SimpleQueue[StepMetrics | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def steps(self) -> Iterator[StepMetrics]:
        """Yield the steps, until there are no more to come."""
        return iter(self._steps.get, None)

    def _read(self) -> None:
        for line in self._lines:
            if step := parsed(line):
                self._steps.put(step)
        self._steps.put(None)
        self.over.set()
        if not is_offline():
            # W&B's library would wait for its server.
            threading.Timer(LAST_SECONDS, os._exit, [1]).start()


def main(lines: BinaryIO) -> int:
    """Take the metrics to W&B; return the exit code, which nobody looks at."""
    # The signals of a run come to all of its processes. This one ends when its input does.
    for number in (signal.SIGTERM, signal.SIGINT, budget.SIGNAL):
        signal.signal(number, signal.SIG_IGN)
    incoming = Incoming(lines)
    run = begun(incoming)
    if run is None:
        return 1
    told = run.step
    if not run.offline:
        say(f"the metrics are at {run.url}")
    for step in incoming.steps():
        if step.step >= told:
            run.log(values(step), step=step.step)
            told = step.step + 1
    run.finish()
    return 0


def values(step: StepMetrics) -> dict[str, float]:
    """Return what W&B gets of a step."""
    return scalars(step) | {"attempt": step.attempt}


def begun(incoming: Incoming) -> Any:
    """Return the run of W&B's, or None where there will be none: without a key, or where the server refuses."""
    # No errors of the library to its makers.
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    plan, said = incoming.plan, False
    if not is_offline() and not os.environ.get(API_KEY_VARIABLE):
        say(
            f"{API_KEY_VARIABLE} is not set, so no metrics go there; create Secret {plan.secret} in the run's namespace"
        )
        return None
    import wandb
    from wandb.errors import CommError

    while True:
        try:
            return wandb.init(
                project=plan.project,
                entity=plan.entity,
                id=plan.id,
                name=plan.name,
                resume="allow",
                config=incoming.config,
                dir=os.environ.get("WANDB_DIR") or tempfile.gettempdir(),
                settings=wandb.Settings(
                    **({"base_url": plan.base_url} if plan.base_url else {}),
                    init_timeout=ANSWER_SECONDS,
                    silent=True,
                    console="off",
                    disable_git=True,
                    disable_code=True,
                    disable_job_creation=True,
                ),
            )
        except CommError as error:
            if not said:
                say(f"the server doesn't answer ({first_line(error)}); it is tried again, and the training goes on")
            said = True
            # Else its own process still holds the run.
            wandb.teardown()
            if incoming.over.wait(AGAIN_SECONDS):
                say("the server never answered, so it has no metrics of this attempt")
                return None
        except Exception as error:
            say(f"no metrics go there ({first_line(error)}); mend spec.tracking.wandb of the Workspace, or its Secret")
            return None


def is_offline() -> bool:
    """Whether W&B's own variable says that there is no server: then it writes files, on a laptop."""
    return os.environ.get("WANDB_MODE") in ("offline", "disabled", "dryrun")


def first_line(error: Exception) -> str:
    """Return what a person needs of an error."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]


def say(text: str) -> None:
    """Tell it to the log of the run."""
    print(f"W&B: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    code = main(sys.stdin.buffer)
    sys.stderr.flush()
    # At once: what was told is there, and the library's last steps at an exit would wait for its server too.
    os._exit(code)
