"""Does a piece of work in a forked process that ends at a number of CPU seconds, whatever it is busy with.

CPU seconds and not those of a clock: how busy the machine is decides nothing.
"""

from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

from halo_trainer.environments.base import EnvironmentFailed


class Endless(Exception):
    """The work took more CPU seconds than it may."""


class Died(Exception):
    """The work ended its process, by a signal that only itself can have been the cause of."""


def contained(work: Callable[[], Any], cpu_seconds: float, more_memory: int) -> Any:
    """Return what `work` returns, which must be JSON; it may take `more_memory` bytes beside what this process has.

    A child that something else ended is no fault of the work: EnvironmentFailed.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(read)
            _bind(cpu_seconds, more_memory)
            answer = json.dumps(work()).encode()
            with os.fdopen(write, "wb") as pipe:
                pipe.write(answer)
            code = 0
        finally:
            # Nothing of the parent's is flushed, closed or unlocked a second time.
            os._exit(code)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        ended = os.WTERMSIG(status)
        if ended in (signal.SIGPROF, signal.SIGXCPU):
            raise Endless(f"it takes more than {cpu_seconds:g} seconds of a core")
        if ended in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL):
            raise Died(f"it ends its process ({signal.Signals(ended).name})")
        raise EnvironmentFailed(
            f"the process that ran the answer was ended from outside ({signal.Signals(ended).name})"
        )
    if os.WEXITSTATUS(status) != 0:
        raise EnvironmentFailed("the process that ran the answer failed")
    return json.loads(answer)


def _bind(cpu_seconds: float, more_memory: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    _lower(resource.RLIMIT_AS, pages * os.sysconf("SC_PAGE_SIZE") + more_memory)
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_FSIZE, 0)
    # Should the timer be lost, the limit of whole seconds is there.
    _lower(resource.RLIMIT_CPU, int(cpu_seconds) + 2)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_PROF, cpu_seconds)


def _lower(limit: int, value: int) -> None:
    """Set a limit as low as `value`, or leave one that is lower already."""
    _, hard = resource.getrlimit(limit)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(limit, (value, value))
