"""Where the supervisor finds and leaves its files; a value, so that a test or a laptop can name other places."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from halo_api.retention import NAMED_STEPS_NAME
from halo_api.rollouts import SERVERS_NAME
from halo_api.run_file import (
    BORN_PATH,
    CA_PATH,
    DEADLINE_PATH,
    REPORT_PATH,
    RUN_FILE_PATH,
    TOKEN_PATH,
)

TERMINATION_LOG_VARIABLE = "HALO_TERMINATION_LOG"


@dataclass(frozen=True)
class Paths:
    """The files of one pod."""

    run_file: Path = Path(RUN_FILE_PATH)
    ca: Path = Path(CA_PATH)
    deadline: Path = Path(DEADLINE_PATH)
    token: Path = Path(TOKEN_PATH)
    report: Path = Path(REPORT_PATH)
    termination_log: Path = Path("/dev/termination-log")
    cgroups: Path = Path("/sys/fs/cgroup")
    born: Path = Path(BORN_PATH)

    @property
    def named_steps(self) -> Path:
        """Where the role reads which of its checkpoints the run's status names."""
        return self.report.with_name(NAMED_STEPS_NAME)

    @property
    def servers(self) -> Path:
        """Where the role reads where the run's rollout servers are now."""
        return self.report.with_name(SERVERS_NAME)


def pod_paths() -> Paths:
    """Return the places that the operator mounts; only the termination log can be moved, by the environment."""
    return Paths(termination_log=Path(os.environ.get(TERMINATION_LOG_VARIABLE, "/dev/termination-log")))
