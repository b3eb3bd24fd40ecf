"""Fixtures of the trainer's tests."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from trainer_support import colour_rows, make_base, write_rows

if TYPE_CHECKING:
    from rank_workers import Workers

os.environ.setdefault("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="session")
def tiny_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_base(tmp_path_factory.mktemp("base") / "tiny")


@pytest.fixture(scope="session")
def two() -> Iterator[Workers]:
    """Two ranks that stay."""
    yield from workers(2)


@pytest.fixture(scope="session")
def four() -> Iterator[Workers]:
    """Four ranks that stay."""
    yield from workers(4)


def workers(world: int) -> Iterator[Workers]:
    from rank_workers import Workers

    found = Workers(world)
    yield found
    found.close()


@pytest.fixture
def root(tiny_base: Path, tmp_path: Path) -> Path:
    """A root of volumes: models/tiny, data/chat.jsonl, artifacts."""
    shutil.copytree(tiny_base, tmp_path / "models" / "tiny")
    write_rows(tmp_path / "data" / "chat.jsonl", colour_rows())
    (tmp_path / "artifacts").mkdir()
    return tmp_path


@pytest.fixture(autouse=True)
def _own_signals() -> Iterator[None]:
    """The trainer takes SIGTERM; give it back to the test runner."""
    numbers = (signal.SIGTERM, signal.SIGINT)
    handlers = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, handlers, strict=True):
        signal.signal(number, handler)
