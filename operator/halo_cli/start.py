"""What runs first of `kubectl halo`: until its modules are loaded, Ctrl-C ends it without a traceback."""

from __future__ import annotations

import signal


def main() -> int:
    """Load the verbs and run one; return the exit code."""
    before = signal.signal(signal.SIGINT, signal.SIG_DFL)
    from halo_cli.__main__ import main as run

    signal.signal(signal.SIGINT, before)
    return run()
