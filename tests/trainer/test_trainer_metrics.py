"""What a step is measured by: FLOPs against models and published numbers, MFU, and a history that a full disk can't harm."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tensorboardX.proto.event_pb2 import Event
from tensorboardX.record_writer import masked_crc32c
from trainer_support import adapter_bytes, run_file, train_here

from halo_api.metrics_history import METRICS_NAME, StepMetrics
from halo_api.report import ProgressReport, RolloutProgress
from halo_trainer.flops import Shape, Work, rows_work, shape_of, step_flops
from halo_trainer.gauges import Meter, peak_flops
from halo_trainer.history import LINE_BYTES, TAGS, History, lines, written
from halo_trainer.progress import Progress

DENSE = {"num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936}
BASES = {
    "Qwen3-4B": DENSE
    | {"model_type": "qwen3", "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36},
    "Qwen3-8B": DENSE
    | {"model_type": "qwen3", "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36},
    "Qwen3-30B-A3B": DENSE
    | {"model_type": "qwen3_moe", "hidden_size": 2048, "num_hidden_layers": 48, "num_key_value_heads": 4}
    | {"moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8},
}


@pytest.mark.parametrize(
    ("base", "gigaflops"),
    [("Qwen3-4B", (19.7, 30.6, 74.1)), ("Qwen3-8B", (33.9, 44.8, 88.3)), ("Qwen3-30B-A3B", (17.0, 31.5, 89.5))],
)
def test_flops_a_token_are_those_of_the_roofline(base: str, gigaflops: tuple[float, ...]) -> None:
    """Rows of 4k, 16k and 65k tokens of which all train, counted by hand: 4 N and the causal half of attention."""
    shape = shape_of(BASES[base])
    assert shape
    for length, wanted in zip((4096, 16384, 65536), gigaflops, strict=True):
        assert step_flops(shape, rows_work([length], length)) / length == pytest.approx(wanted * 1e9, rel=0.005)


def tiny(kind: str) -> Any:
    """Return the config of a small model of every kind that is known."""
    from transformers import AutoConfig

    small = {
        "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "sliding_window": None,
        "num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40,
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 12,
    }  # fmt: skip
    return AutoConfig.for_model(kind, **small)


@pytest.mark.parametrize(
    ("kind", "softmax"),
    [
        ("llama", 4),
        ("mistral", 4),
        ("qwen2", 4),
        ("qwen3", 4),
        ("qwen3_moe", 4),
        ("qwen3_next", 1),
        ("qwen3_5_text", 1),
        ("qwen3_5_moe_text", 1),
    ],
)
def test_the_weights_are_those_of_the_model(kind: str, softmax: int) -> None:
    """Every matrix of the real model that a token is multiplied with, and of the experts the two of eight that it meets."""
    from transformers import AutoModelForCausalLM

    config = tiny(kind)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    matrices = {
        name: weights.numel() * (2 / 8 if ".experts." in name else 1)
        for name, weights in model.named_parameters()
        if weights.dim() >= 2 and "embed" not in name and "conv1d" not in name and "lm_head" not in name
    }
    shape = shape_of(config.get_text_config().to_dict())
    assert shape
    assert shape.layers == sum(matrices.values())
    assert shape.head == model.get_output_embeddings().weight.numel()
    assert shape.pair == softmax * 4 * config.num_attention_heads * (getattr(config, "head_dim", None) or 8)
    assert (shape.state > 0) == (softmax < 4)


def test_nothing_is_claimed_of_what_is_not_known() -> None:
    assert shape_of({"model_type": "deepseek_v3", "hidden_size": 64}) is None
    assert shape_of(BASES["Qwen3-4B"] | {"sliding_window": 4096}) is None
    assert Meter(torch.device("cpu"), None, None).flops(Work(5, 15, 3)) == 0


def test_each_part_of_a_step_counts_as_the_formula_says() -> None:
    shape = Shape(layers=1000, head=100, pair=8, state=20, adapter=30)
    assert step_flops(shape, Work(tokens=10, pairs=0, predicted=0)) == 4 * 10 * 1000 + 6 * 10 * 30 + 3 * 10 * 20
    assert step_flops(shape, Work(tokens=0, pairs=7, predicted=3)) == 3 * 7 * 8 + 4 * 3 * 100
    lone, twice = (step_flops(shape, rows_work([4, 6], 5, reference)) for reference in (False, True))
    assert twice - lone == 2 * 10 * 1000 + 2 * 10 * 30 + 10 * 20 + 2 * 5 * 100 + (10 + 21) * 8
    # A LoRA on every expert: of eight a token meets two.
    trained = {"model.layers.0.mlp.experts.0.up_proj.lora_A.weight": 80, "model.layers.0.self_attn.q_proj.lora_A": 8}
    moe = shape_of(BASES["Qwen3-30B-A3B"] | {"num_experts": 8, "num_experts_per_tok": 2}, trained)
    assert moe
    assert moe.adapter == 28


@pytest.mark.parametrize(
    ("name", "teraflops"),
    [
        ("NVIDIA H200", 989.4),
        ("NVIDIA H100 80GB HBM3", 989.4),
        ("NVIDIA H100 PCIe", 756),
        ("NVIDIA GH200 480GB", 989.4),
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A10", 125),
        ("NVIDIA A10G", None),
        ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", None),
        ("AMD Instinct MI300X", None),
    ],
)
def test_a_gpu_has_the_peak_of_its_data_sheet_or_none(name: str, teraflops: float | None) -> None:
    assert peak_flops(name, "bf16") == (teraflops and teraflops * 1e12)
    assert peak_flops(name, "fp32") is None


def step(number: int, **changes: Any) -> StepMetrics:
    facts = {
        "attempt": 1, "step": number, "at": 1.8e9 + number, "seconds": 0.5, "loss": 2.0 / number, "learning_rate": 1e-4,
        "grad_norm": 0.5, "tokens": 100, "tokens_per_second": 200.0, "memory_bytes": 2**30,
    }  # fmt: skip
    return StepMetrics(**facts | changes)


def test_mfu_is_flops_over_seconds_and_peak(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shape, work = Shape(layers=10**6, head=10**4, pair=100), Work(100, 5050, 40)
    meter = Meter(torch.device("cpu"), shape, peak=1e10)
    progress = Progress(3, 0, True, meter, History(tmp_path, 7))
    reports = [progress.finished(n, 1.0, 1e-4, 0.1, work) for n in (1, 2, 3)]
    found = list(lines(tmp_path / METRICS_NAME))
    assert [(one.attempt, one.step, one.tokens) for one in found] == [(7, 1, 100), (7, 2, 100), (7, 3, 100)]
    for one in found:
        assert one.mfu
        assert one.mfu * one.seconds == pytest.approx(step_flops(shape, work) / 1e10, rel=0.05)
    assert reports[-1].mfu
    assert f"mfu {reports[-1].mfu:.1%} mem " in capsys.readouterr().out


def test_without_a_peak_there_is_no_mfu(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = train_here(run_file(), root)
    assert isinstance(report.progress, ProgressReport)
    assert (report.progress.mfu, report.progress.memory_bytes is not None) == (None, True)
    found = list(lines(root / "artifacts" / "run" / METRICS_NAME))
    assert [one.step for one in found] == [1, 2, 3, 4, 5, 6]
    assert all(one.mfu is None for one in found)
    last, told = found[-1], report.progress
    assert (last.loss, last.grad_norm, last.learning_rate) == (told.loss, told.grad_norm, told.learning_rate)
    assert sum(one.tokens for one in found) == told.tokens
    assert "mfu" not in capsys.readouterr().out


def records(data: bytes) -> list[Event]:
    """Return the events of a TensorBoard file, each as its checksums say."""
    found = []
    while data:
        (size,), (of_size,) = struct.unpack("<Q", data[:8]), struct.unpack("<I", data[8:12])
        body, (of_body,) = data[12 : 12 + size], struct.unpack("<I", data[12 + size : 16 + size])
        assert (masked_crc32c(data[:8]), masked_crc32c(body)) == (of_size, of_body)
        found.append(Event.FromString(body))
        data = data[16 + size :]
    return found


def test_tensorboard_reads_the_same_steps(tmp_path: Path) -> None:
    history = History(tmp_path, 1)
    steps = [step(1), step(2, mfu=0.41, reward_margin=-0.5)]
    for one in steps:
        history.write(one)
    (file,) = tmp_path.glob("*tfevents*")
    head, *events = records(file.read_bytes())
    assert head.file_version == "brain.Event:2"
    for one, event in zip(steps, events, strict=True):
        scalars = {value.tag: value.simple_value for value in event.summary.value}
        said = {tag: getattr(one, name) for name, tag in TAGS.items() if getattr(one, name) is not None}
        assert (event.step, event.wall_time) == (one.step, one.at)
        assert scalars == pytest.approx(said)


def test_what_a_steps_episodes_were_like_is_in_the_log_the_report_and_the_history(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = RolloutProgress(reward=0.25, pass_rate=0.125, scored=62, unscored=2, mismatch=3e-4, staleness=0)
    progress = Progress(9, 0, True, Meter(torch.device("cpu"), None, None), History(tmp_path, 1))
    report = progress.finished(1, 1.0, 1e-4, 0.1, Work(100, 5050, 40), rollouts=told)
    (line,) = lines(tmp_path / METRICS_NAME)
    assert (report.rollouts, line.rollouts) == (told, told)
    assert " reward 0.250 pass 12.5% mismatch 3.0e-04 unscored 2 lr " in capsys.readouterr().out
    (file,) = tmp_path.glob("*tfevents*")
    shown = {value.tag: value.simple_value for value in records(file.read_bytes())[1].summary.value}
    of_episodes = {tag: value for tag, value in shown.items() if tag.startswith("rollouts/")}
    assert of_episodes.items() >= {"rollouts/reward": 0.25, "rollouts/pass_rate": 0.125, "rollouts/scored": 62}.items()
    assert "rollouts/kl" not in of_episodes


def test_a_history_that_can_not_be_written_fails_no_run(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    straight = train_here(run_file(output="straight"), root)
    (root / "artifacts" / "run" / METRICS_NAME).mkdir(parents=True)
    report = train_here(run_file(), root)
    assert report.outcome
    assert straight.outcome
    assert (report.outcome.result, adapter_bytes(root)) == ("Succeeded", adapter_bytes(root, "straight"))
    said = [line for line in capsys.readouterr().err.splitlines() if "steps will be missing" in line]
    assert len(said) == 1
    assert said[0].startswith(f"{root}/artifacts/run/metrics.jsonl: steps will be missing in it ([Errno 21]")


def test_a_full_disk_leaves_whole_lines_and_is_told_once(tmp_path: Path) -> None:
    """The kernel's limit on a file's size cuts a write as a full disk does."""
    program = f"""
import resource
from pathlib import Path
from test_trainer_metrics import step
from halo_trainer.history import History
history = History(Path({str(tmp_path)!r}), 1)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
for number in range(1, 20):
    history.write(step(number))
"""
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": ":".join([str(here), *sys.path])}, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    text = (tmp_path / METRICS_NAME).read_bytes()
    assert 500 < len(text) <= 1000
    assert text.endswith(b"}\n")
    assert [one.step for one in lines(tmp_path / METRICS_NAME)] == list(range(1, text.count(b"\n") + 1))
    (file,) = tmp_path.glob("*tfevents*")
    assert len(records(file.read_bytes())) > 2
    assert done.stderr.decode().count("steps will be missing") == 2


def test_what_is_no_line_is_left_out(tmp_path: Path) -> None:
    whole = step(1).model_dump_json(by_alias=True).encode()
    file = tmp_path / "a1" / METRICS_NAME
    file.parent.mkdir()
    torn = whole[:40]
    # No chart has a place for these, and no step of a run comes to one.
    field = re.compile(rb'"(loss|memoryBytes)":[^,]*')
    odd = [field.sub(rb'"\1":' + value, whole) for value in (b"NaN", b"-Infinity", b"1e999", b"1" + b"0" * 400)]
    file.write_bytes(b"\n".join([whole, b"x" * (3 * LINE_BYTES), b"[]", b"", b"\xff\xfe", *odd, torn]))
    assert [one.step for one in written(tmp_path, Path.is_file)] == [1]


def test_no_link_is_followed(tmp_path: Path) -> None:
    """Whoever else mounts the claim may put one there."""
    (tmp_path / "elsewhere").write_bytes(b"")
    (tmp_path / METRICS_NAME).symlink_to(tmp_path / "elsewhere")
    History(tmp_path, 1).write(step(1))
    assert (tmp_path / "elsewhere").read_bytes() == b""
