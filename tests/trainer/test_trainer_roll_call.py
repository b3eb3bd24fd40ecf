"""The roll call: all ranks say the same one was lost, and miss none that left in order."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from torch.distributed import TCPStore

from halo_api.conditions import Reason
from halo_trainer.failures import RunFailure
from halo_trainer.parallel.ranks import Ranks
from halo_trainer.parallel.roll_call import RollCall


class Place:
    """Where three ranks of two nodes meet; each has a connection of its own, as processes have."""

    def __init__(self) -> None:
        self.store: Any = TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=60))
        self.told: list[queue.Queue[RunFailure]] = [queue.Queue() for _ in range(3)]
        self.calls = [
            RollCall(Ranks(rank, 3, rank % 2, 2), self.told[rank].put, beat=0.05, patience=3.0) for rank in range(3)
        ]
        for call in self.calls:
            call.begin(TCPStore("127.0.0.1", self.store.port, timeout=timedelta(seconds=60)))

    def said(self, rank: int) -> str:
        failure = self.told[rank].get(timeout=120)
        assert failure.reason == Reason.RANK_LOST
        return str(failure)


@pytest.fixture
def place() -> Iterator[Place]:
    found = Place()
    yield found
    for call in found.calls:
        call.__exit__(None, None, None)


def test_all_say_which_rank_fell_silent(place: Place) -> None:
    place.calls[2].__exit__(RunFailure, RunFailure(Reason.CRASHED, "its own end"), None)
    sentence = place.said(0)
    assert sentence.startswith("rank 2 (process 0 of node 1) was lost: nothing was heard of it for ")
    assert place.said(1) == sentence


def test_an_error_becomes_that_of_the_lost_rank_and_stays_what_it_is_without_one(place: Place) -> None:
    with pytest.raises(ValueError, match="a bug"), place.calls[0]:
        raise ValueError("a bug")
    # Its thread has ended with the block.
    with pytest.raises(RunFailure, match=r"rank 0 .* was lost"), place.calls[1]:
        raise RuntimeError("Connection closed by peer")


def test_a_rank_that_left_in_order_is_not_missed(place: Place) -> None:
    place.calls[1].__exit__(None, None, None)
    assert place.calls[0].who_is_lost() == ""
    assert all(told.empty() for told in place.told)


def test_the_place_goes_with_the_first_rank(place: Place) -> None:
    del place.store
    for rank in (1, 2):
        assert place.said(rank) == ("rank 0 (process 0 of node 0) was lost, and with it the place where the ranks meet")
