"""Fixtures of the supervisor's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from supervisor_support import Pod, pod_with_operator


@pytest.fixture
def pod(tmp_path: Path) -> Iterator[Pod]:
    with pod_with_operator(tmp_path) as pod:
        yield pod
