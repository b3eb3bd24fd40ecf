"""An object that our models refuse is said to be unreadable, field by field, and never breaks a reconcile."""

from __future__ import annotations

import pytest

from halo_api.adapter import AdapterSpec
from halo_api.dataset import DatasetStatus
from halo_api.gpu_class import GpuClassSpec
from halo_operator.gather import Unreadable, read

OLD = {"kind": "GpuClass", "metadata": {"name": "h100"}, "spec": {"memoryGiB": 0}}


def test_what_can_be_read_is_read() -> None:
    assert read(GpuClassSpec, OLD | {"spec": {"memoryGiB": 80}}).memory_gi_b == 80
    assert read(DatasetStatus, OLD, "status") == DatasetStatus()


def test_what_cannot_is_waited_for_by_its_name_and_field() -> None:
    with pytest.raises(Unreadable) as caught:
        read(GpuClassSpec, OLD)
    refusal = caught.value.refusal
    assert (refusal.reason, refusal.pending) == ("ObjectUnreadable", True)
    assert refusal.message.startswith("GpuClass h100: spec.memoryGiB: found '0', ")
    assert refusal.message.endswith("mend it, or upgrade the chart if it is newer")


def test_a_missing_part_is_named() -> None:
    with pytest.raises(Unreadable, match=r"^Adapter a: spec\.base: Field required"):
        read(AdapterSpec, {"kind": "Adapter", "metadata": {"name": "a"}})
