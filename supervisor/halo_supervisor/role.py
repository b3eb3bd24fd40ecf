"""The role: the one child that does the pod's work, in a process group of its own."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import BinaryIO

PR_SET_CHILD_SUBREAPER = 36


class Role:
    """A running role. Only `reap` waits for children, because process 1 must also collect the orphans it inherits."""

    def __init__(self, command: Sequence[str]) -> None:
        # As process 1 the supervisor inherits orphans anyway; with a shared process namespace it must ask for them.
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        self.status: int | None = None
        self.last_error_line = ""
        # The Popen object is kept, never polled: its own wait would race with `reap`.
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, process_group=0)
        assert self._process.stderr is not None
        self._tee = threading.Thread(target=self._pass_on, args=(self._process.stderr,), daemon=True)
        self._tee.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def reap(self) -> bool:
        """Collect every child that has ended; return whether the role itself has."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            if pid == self.pid:
                self.status = status
        return self.status is not None

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the whole group; the group outlives its leader where workers do."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def finish(self, patience: float = 2.0) -> None:
        """End what the role left behind, and let the last of its standard error through."""
        self.signal(signal.SIGKILL)
        # An orphan in another session may still hold the pipe open, so the wait is bounded.
        self._tee.join(patience)
        self.reap()
        self._process.returncode = self.exit_code

    @property
    def exit_code(self) -> int | None:
        """The exit code, negative for the signal that ended it."""
        return None if self.status is None else os.waitstatus_to_exitcode(self.status)

    def _pass_on(self, pipe: BinaryIO) -> None:
        """Copy standard error through as it comes, and remember its last line for the outcome."""
        unfinished = b""
        while chunk := os.read(pipe.fileno(), 65536):
            sys.stderr.buffer.write(chunk)
            sys.stderr.buffer.flush()
            *complete, unfinished = (unfinished + chunk).split(b"\n")
            # A role may write one endless line; what the outcome can carry is enough to keep.
            unfinished = unfinished[-4096:]
            for line in (*complete, unfinished):
                if line.strip():
                    self.last_error_line = line.decode("utf-8", "replace").strip()
        pipe.close()
