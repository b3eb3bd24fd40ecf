"""`python -m halo_trainer.environments.worker`: runs the sessions of episodes, one request at a time, apart from the trainer.

Standard input and output are the wire. The process binds itself before it reads the first task: no core file, nothing written,
an address space and CPU seconds a request; it has no secret in its environment and ends when the trainer does.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Callable
from typing import IO, Any

from halo_api.recipe_settings import TaskEnvironment
from halo_trainer.environments.base import Environment, EnvironmentFailed, Session
from halo_trainer.environments.registry import environment_of
from halo_trainer.environments.wire import WorkerLimits, task_of, to_json


def main() -> int:
    """Answer requests until there are no more; return the exit code."""
    requests, answers = sys.stdin.buffer, _taken_output()
    first = json.loads(requests.readline() or "null")
    if first is None:
        return 0
    limits = WorkerLimits(**first["limits"])
    environment = environment_of(TaskEnvironment.model_validate(first["settings"]))
    bind(limits)
    _tell(answers, {"value": None})
    sessions: dict[int, Session] = {}
    for line in requests:
        limit_cpu(limits.cpu_seconds)
        _tell(answers, answered(environment, sessions, json.loads(line)))
    return 0


def answered(environment: Environment, sessions: dict[int, Session], request: dict[str, Any]) -> dict[str, Any]:
    """Do what a request asks; whatever an environment raises is its own failure, and ends the session."""
    number = int(request["session"])
    try:
        return {"value": to_json(_DO[request["do"]](environment, sessions, number, request))}
    except EnvironmentFailed as failure:
        words = str(failure)
    except Exception as error:
        words = f"{type(error).__name__}: {error}"
    sessions.pop(number, None)
    return {"failed": words[:1000]}


def _open(environment: Environment, sessions: dict[int, Session], number: int, request: dict[str, Any]) -> Any:
    sessions[number] = environment.session(task_of(request["task"]))
    return sessions[number].open()


def _call(_: Environment, sessions: dict[int, Session], number: int, request: dict[str, Any]) -> Any:
    return sessions[number].call(request["name"], request["arguments"])


def _score(_: Environment, sessions: dict[int, Session], number: int, request: dict[str, Any]) -> Any:
    return sessions[number].score(request["answer"])


def _close(_: Environment, sessions: dict[int, Session], number: int, __: dict[str, Any]) -> None:
    session = sessions.pop(number, None)
    if session is not None:
        session.close()


_DO: dict[str, Callable[[Environment, dict[int, Session], int, dict[str, Any]], Any]] = {
    "open": _open,
    "call": _call,
    "score": _score,
    "close": _close,
}


def bind(limits: WorkerLimits) -> None:
    """Bind this process for good."""
    for limit, value in (
        (resource.RLIMIT_CORE, 0),
        # A file may be opened, but nothing can be written to it.
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, limits.open_files),
        (resource.RLIMIT_AS, limits.memory_bytes),
    ):
        _, hard = resource.getrlimit(limit)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (value, value))


def limit_cpu(seconds: int) -> None:
    """Let this process take so many CPU seconds from now on; then it is ended."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(used.ru_utime + used.ru_stime) + 1 + seconds, hard))


def _taken_output() -> IO[bytes]:
    """Return the wire's end; what an environment prints goes to the log instead."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return answers


def _tell(answers: IO[bytes], value: dict[str, Any]) -> None:
    answers.write(json.dumps(value).encode() + b"\n")
    answers.flush()


if __name__ == "__main__":
    sys.exit(main())
