"""`python -m halo_supervisor`: process 1 of a pod of a run."""

from __future__ import annotations

import logging
import sys

from halo_api.run_file import RunFile
from halo_supervisor.paths import pod_paths
from halo_supervisor.supervise import supervise


def trainer_command(run: RunFile) -> list[str]:
    """Return the command of the run's role in the trainer image."""
    return [sys.executable, "-m", "halo_trainer", run.role]


def main() -> int:
    """Supervise this pod."""
    logging.basicConfig(level=logging.INFO, format="supervisor: %(message)s", stream=sys.stderr)
    return supervise(pod_paths(), trainer_command)


if __name__ == "__main__":
    sys.exit(main())
