"""`python -m halo_supervisor`: process 1 of a pod of a run."""

from __future__ import annotations

import logging
import sys

from halo_api.run_file import REPORT_PATH, RUN_FILE_PATH, RunFile
from halo_supervisor.paths import pod_paths
from halo_supervisor.supervise import supervise


def role_command(run: RunFile) -> list[str]:
    """Return the command of the run's role: in the trainer image, or in the rollout image, which holds both."""
    if run.role == "rollout":
        return [sys.executable, "-m", "halo_rollout", "serve", "--run-file", RUN_FILE_PATH, "--report", REPORT_PATH]
    return [sys.executable, "-m", "halo_trainer", run.role]


def main() -> int:
    """Supervise this pod."""
    logging.basicConfig(level=logging.INFO, format="supervisor: %(message)s", stream=sys.stderr)
    return supervise(pod_paths(), role_command)


if __name__ == "__main__":
    sys.exit(main())
