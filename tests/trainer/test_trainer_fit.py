"""What decides that a base is sharded, and that all ranks make as many passes over it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trainer_support import make_base, run_file, train_here

from halo_api.conditions import Reason
from halo_trainer.data.batches import lockstep, packs
from halo_trainer.failures import RunFailure
from halo_trainer.gauges import machine_bytes
from halo_trainer.model import attach_lora, load_base
from halo_trainer.parallel.fit import Devices, Weights, shards, told
from halo_trainer.parallel.shard import measured

GB = 10**9
# An 8B in bf16 with its LoRA of rank 16: 36 blocks.
EIGHT = Weights(blocks=14 * GB, largest=400_000_000, rest=2 * GB, trained=180_000_000)


def gpus(memory: int, world: int) -> Devices:
    return Devices("cuda", memory * GB, world)


@pytest.mark.parametrize(
    ("memory", "world", "sharded"),
    [
        # A fifth is kept for activations, so that 16.7 GB fit a GPU of 24.
        (24, 1, False),
        (24, 8, False),
        (20, 2, True),
        (12, 2, True),
        # One GPU can't share; there may yet be room for short rows.
        (20, 1, False),
    ],
)
def test_a_base_is_sharded_only_where_it_does_not_fit(memory: int, world: int, sharded: bool) -> None:
    assert shards("b", EIGHT, gpus(memory, world)) is sharded


def test_a_run_that_can_not_shard_keeps_the_base_whole_while_it_fits() -> None:
    assert not shards("b", EIGHT, gpus(20, 2), "method dpo keeps it whole on each")


def test_the_log_says_why_it_is_sharded() -> None:
    assert told("qwen3-8b", EIGHT, gpus(12, 2)) == (
        "base qwen3-8b of 16.0 GB does not fit 1 GPU of 12.0 GB: sharded over 2, 10.9 GB on each"
    )


@pytest.mark.parametrize(
    ("devices", "why", "sentence"),
    [
        (
            gpus(12, 1),
            None,
            "base b of 16.0 GB does not fit 1 GPU of 12.0 GB with 720 MB for the adapter and its optimizer; "
            "use a GPU class with more memory, or a higher spec.gpu.count",
        ),
        (
            gpus(12, 2),
            "method dpo keeps it whole on each",
            "base b of 16.0 GB does not fit 1 GPU of 12.0 GB with 720 MB for the adapter and its optimizer, "
            "and method dpo keeps it whole on each; use a GPU class with more memory",
        ),
        (
            gpus(8, 2),
            None,
            "base b of 16.0 GB does not fit 2 GPUs of 8.0 GB together: each would hold 7.0 GB of its blocks, "
            "1.2 GB for those that are gathered, 2.0 GB of embeddings and head and 720 MB for the adapter and its "
            "optimizer, which is 10.9 GB; use a GPU class with more memory, or a higher spec.gpu.count",
        ),
        (
            Devices("cpu", 8 * GB, 2),
            None,
            "base b of 16.0 GB does not fit 2 processes of 8.0 GB together: each would hold 7.0 GB of its blocks, "
            "1.2 GB for those that are gathered, 2.0 GB of embeddings and head and 720 MB for the adapter and its "
            "optimizer, which is 10.9 GB; give each process more memory, or a higher spec.gpu.count",
        ),
    ],
)
def test_a_base_that_fits_nowhere_is_refused_with_the_arithmetic(
    devices: Devices, why: str | None, sentence: str
) -> None:
    with pytest.raises(RunFailure) as refused:
        shards("b", EIGHT, devices, why)
    assert (refused.value.reason, str(refused.value)) == (Reason.OUT_OF_MEMORY, sentence)


def test_a_run_whose_base_does_not_fit_ends_before_it_is_loaded(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALO_DEVICE_BYTES", "100000")
    (root / "models" / "tiny" / "model.safetensors").unlink()
    outcome = train_here(run_file(), root).outcome
    assert outcome
    assert outcome.reason == Reason.OUT_OF_MEMORY
    assert outcome.message.startswith("base tiny of 120 kB does not fit 1 process of 100 kB with ")


def test_what_is_measured_of_a_configuration_is_what_is_loaded(tmp_path: Path) -> None:
    """Tied embeddings count once."""
    folder = make_base(tmp_path, layers=3)
    run = run_file()
    assert run.train
    weights, blocks = measured(run.base, folder, run.train)
    model = attach_lora(load_base(run.base, folder), run.train.lora, 0)
    sizes = {part: part.nbytes for part in model.parameters()}
    assert blocks == 3
    assert weights.base == sum(size for part, size in sizes.items() if not part.requires_grad)
    assert weights.trained == sum(size for part, size in sizes.items() if part.requires_grad)
    assert weights.blocks == 3 * weights.largest
    assert weights.rest == model.get_base_model().lm_head.weight.nbytes + 4 * 32


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=24),
    batch=st.integers(1, 24),
    world=st.integers(1, 9),
    budget=st.integers(40, 80),
)
def test_all_ranks_make_as_many_passes_and_each_row_counts_once(
    lengths: list[int], batch: int, world: int, budget: int
) -> None:
    step = list(range(min(batch, len(lengths))))
    ranks = [lockstep(step, lengths, rank, world, lambda share: packs(share, lengths, budget)) for rank in range(world)]
    assert len({len(passes) for passes in ranks}) == 1
    assert sorted(index for passes in ranks for part in passes for index in part or ()) == step
    # Some rank has rows in all of them: there are no more than must be.
    assert any(None not in passes for passes in ranks)


@pytest.mark.parametrize(
    ("files", "membership", "expected"),
    [
        ({"memory.max": "5000"}, "0::/", 5000),
        ({"memory.max": "max"}, "0::/", None),
        ({"pod/role/memory.max": "max", "pod/memory.max": "7000", "memory.max": "9000"}, "0::/pod/role", 7000),
        # A container's own cgroup is the top of what it sees, whatever its path is outside.
        ({"memory.max": "5000"}, "0::/kubepods/pod1", 5000),
        ({"memory/memory.limit_in_bytes": "6000"}, "9:cpu:/\n4:memory:/", 6000),
        ({"memory/memory.limit_in_bytes": "9223372036854771712"}, "4:memory:/", None),
        ({}, None, None),
    ],
)
def test_a_containers_memory_is_its_least_limit(
    files: dict[str, str], membership: str | None, expected: int | None, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / "cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cgroup" / name).write_text(text)
    own = tmp_path / "self"
    if membership is not None:
        own.write_text(membership)
    whole = machine_bytes(tmp_path / "none", tmp_path / "none")
    assert machine_bytes(tmp_path / "cgroup", own) == (expected or whole)
