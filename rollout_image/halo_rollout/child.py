"""vLLM as a child, in a process group of its own: it is several processes, and all of them end together."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
from collections.abc import Mapping, Sequence

PR_SET_PDEATHSIG = 1
# Between being asked to end and being killed.
PATIENCE_SECONDS = 15.0


class Child:
    """The running server."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, words: Sequence[str], environment: Mapping[str, str]) -> Child:
        """Start it; raises OSError."""
        return cls(
            await asyncio.create_subprocess_exec(
                *words, env=dict(environment), process_group=0, preexec_fn=_end_with_parent
            )
        )

    async def ended(self) -> int:
        """Wait until it ends by itself; return its exit code, negative for the signal that ended it."""
        return await self._process.wait()

    async def end(self) -> None:
        """End all of it: its server is asked to end the rest in order, and what is left of the group is killed."""
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), PATIENCE_SECONDS)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self._process.wait()


def _end_with_parent() -> None:
    """In the child: be killed when the guard is, lest an orphan keeps the GPU."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
