"""What can go wrong in a run ends in a reason and one sentence, and never harms what was written before."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from tiny_models import tiny_config
from trainer_support import adapter_bytes, chat, colour_rows, make_base, run_file, start, train_here, write_rows
from transformers import AutoModelForCausalLM

from halo_api.conditions import Reason
from halo_api.digests import files_digest
from halo_api.report import InspectionReport, Outcome, Report
from halo_api.run_status import FrozenLora
from halo_trainer.checkpoints.digest import folder_files
from halo_trainer.cli import main
from halo_trainer.data.jsonl import file_digest
from halo_trainer.data.load import load_template, load_tokenizer, training_rows
from halo_trainer.failures import RunFailure, failure_of
from halo_trainer.files import write_durably
from halo_trainer.inspection import inspect
from halo_trainer.model import attach_lora, load_base
from halo_trainer.reporting import Reporting


def failed(report: Report) -> tuple[str, str]:
    assert report.outcome
    assert report.outcome.result == "Failed", report.outcome
    return report.outcome.reason, report.outcome.message


def inspected(root: Path) -> Outcome:
    run = run_file("inspect")
    try:
        return inspect(run, str(root), Reporting(root / "report.json", run))
    except Exception as error:
        failure = failure_of(error)
        return Outcome(result="Failed", reason=failure.reason, message=str(failure))


def test_an_inspection_counts_what_training_reads(root: Path) -> None:
    write_rows(root / "data" / "chat.jsonl", [chat("sky?", "Blue."), chat("grass?", "Green.", "snow?", "White.")])
    outcome = inspected(root)
    assert outcome.result == "Succeeded", outcome.message
    counted = outcome.inspection
    assert isinstance(counted, InspectionReport)
    assert counted.sha256 == file_digest(root / "data" / "chat.jsonl")
    assert counted.rows == 2
    assert 0 < counted.trained_tokens < counted.longest_row < counted.tokens
    assert counted.longer == ()
    data = {"sha256": counted.sha256}
    assert train_here(run_file(data=data, lora={"maxLength": counted.longest_row}), root).outcome.result == "Succeeded"  # type: ignore[union-attr]
    short = train_here(run_file(data=data, lora={"maxLength": counted.longest_row - 1}), root)
    assert failed(short)[0] == Reason.ROW_TOO_LONG


def test_an_inspection_counts_the_rows_above_each_length(root: Path) -> None:
    write_rows(root / "data" / "chat.jsonl", [chat("sky? " * n, "Blue.") for n in (1, 90, 300, 600)])
    counted = inspected(root).inspection
    assert isinstance(counted, InspectionReport)
    found = {one.tokens: one.rows for one in counted.longer}
    assert found[256] >= found[512] >= 1
    assert max(found) < counted.longest_row


def test_an_inspection_as_a_process_names_the_bad_row(root: Path) -> None:
    with (root / "data" / "chat.jsonl").open("a") as file:
        file.write("{not json\n")
    process = start("inspect", run_file("inspect"), root)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 1
    sentence = (
        "line 25 is not JSON (Expecting property name enclosed in double quotes, column 2); "
        "write one JSON object a line"
    )
    assert failed(Report.model_validate_json((root / "report.json").read_bytes())) == ("BadRow", sentence)
    assert output.decode() == f"Failed (BadRow): {sentence}\n"


def test_missing_things_are_named(root: Path) -> None:
    data = root / "data" / "chat.jsonl"
    data.unlink()
    assert (inspected(root).reason, inspected(root).message) == (
        Reason.DATASET_MISSING,
        f"{data} is not there; put the JSONL file there, or name another one in the Dataset's spec.source",
    )
    write_rows(data, colour_rows())
    (root / "models" / "tiny" / "tokenizer.json").unlink()
    assert inspected(root).reason == Reason.BASE_MISSING
    (root / "models" / "tiny" / "config.json").unlink()
    assert (inspected(root).reason, inspected(root).message) == (
        Reason.BASE_MISSING,
        f"base tiny: {root}/models/tiny has no config.json; "
        "put the model's files there, or mend the BaseModel's spec.source",
    )


def test_unreadable_weights_are_the_bases_fault(root: Path) -> None:
    (root / "models" / "tiny" / "model.safetensors").write_bytes(b"not weights")
    reason, message = failed(train_here(run_file(), root))
    assert reason == Reason.BASE_MISSING
    assert message.startswith("base tiny: its weights can't be loaded (")


def test_an_error_without_words_is_the_bases_fault_too(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As an assertion of a library has none."""

    def fails(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", fails)
    with pytest.raises(RunFailure, match=r"its weights can't be loaded \(AssertionError\); put the model's own files"):
        load_base(run_file().base, root / "models" / "tiny")


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (None, "can't be read (No such file or directory); name one with --run-file"),
        (lambda text: text[:-1], "is none (it: Invalid JSON"),
        (lambda text: text.replace('"saveSteps":2', '"saveSteps":0'), "is none (train.saveSteps: Input should be greater"),
        (lambda text: text.replace('"steps":6', '"steps":0'), "is none (train.steps: Input should be greater"),
    ],
)  # fmt: skip
def test_a_run_file_that_is_none_is_one_sentence(
    change: Callable[[str], str] | None, found: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.json"
    if change:
        path.write_text(change(run_file().canonical()))
    for verb in (["train"], ["inspect", "--rows", "1"]):
        assert main([*verb, "--run-file", str(path)]) == 1
        told = capsys.readouterr().err
        assert told.count("\n") == 1
        if change or verb == ["train"]:
            assert told.startswith(f"halo-trainer: the run file {path} {found}")


def test_a_token_that_was_added_to_the_tokenizer_alone_is_named(root: Path) -> None:
    """The base would look it up beyond its embeddings; on a GPU that says nothing of the row."""
    base = root / "models" / "tiny"
    tokenizer = load_tokenizer(run_file().base, base)
    known = len(tokenizer)
    tokenizer.add_tokens(["<|extra|>"])
    tokenizer.save_pretrained(base)
    write_rows(root / "data" / "chat.jsonl", [chat("sky?", "Blue."), chat("<|extra|>?", "Green.")])
    for outcome in (inspected(root), train_here(run_file(), root).outcome):
        assert outcome
        assert (outcome.reason, outcome.message) == (
            Reason.TEMPLATE_MISMATCH,
            f"line 2: the tokenizer of base tiny writes the token <|extra|> ({known}), and the base has only {known}; "
            "put tokenizer and weights of one model into the base's folder",
        )


def test_a_base_without_a_template_is_named(tmp_path: Path) -> None:
    make_base(tmp_path / "models" / "tiny", None)
    write_rows(tmp_path / "data" / "chat.jsonl", colour_rows())
    outcome = inspected(tmp_path)
    assert (outcome.reason, outcome.message) == (
        Reason.TEMPLATE_MISMATCH,
        f"the tokenizer of base tiny has no chat template; put a chat_template.jinja into {tmp_path}/models/tiny",
    )


def test_data_that_changed_after_inspection_is_refused(root: Path) -> None:
    path = root / "data" / "chat.jsonl"
    before = file_digest(path)
    write_rows(path, colour_rows(23))
    assert failed(train_here(run_file(data={"sha256": before}), root)) == (
        Reason.DATASET_CHANGED,
        f"data set chat: {path} has digest {file_digest(path)}, it was inspected with {before}; "
        "put the inspected file back, or create a new Dataset for the new one",
    )


def test_data_that_changes_between_the_check_and_the_reading_is_refused_too(root: Path) -> None:
    path = root / "data" / "chat.jsonl"
    before = file_digest(path)
    template = load_template(run_file().base, root / "models" / "tiny")
    opened = []

    class Replaced(type(path)):  # type: ignore[misc]
        def open(self, *how: str) -> Any:
            opened.append(how)
            if len(opened) == 2:
                write_rows(path, colour_rows(23))
            return super().open(*how)

    with pytest.raises(RunFailure) as refused:
        list(training_rows(run_file(data={"sha256": before}).data, Replaced(path), template))
    assert (refused.value.reason, len(opened)) == (Reason.DATASET_CHANGED, 2)


def test_overlong_rows_are_refused_dropped_or_cut_as_asked(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = colour_rows(6)
    rows[2] = chat("sky? " * 100, "Blue.")
    rows[4] = chat("sky?", "Blue. " * 100)
    write_rows(root / "data" / "chat.jsonl", rows)
    reason, message = failed(train_here(run_file(lora={"maxLength": 120}), root))
    assert reason == Reason.ROW_TOO_LONG
    assert message.startswith(
        "2 of 6 rows are longer than 120 tokens: the first is line 3, the longest line 3 with 214; "
    )
    for how, kept in (("drop", 4), ("truncate", 5)):
        report = train_here(run_file(output=how, lora={"maxLength": 120, "overlength": how}), root)
        assert report.outcome
        assert report.outcome.result == "Succeeded", report.outcome.message
        assert f"2 rows are longer than 120 tokens: overlength={how} keeps {kept} rows" in capsys.readouterr().out


def test_a_loss_that_is_no_number_ends_the_run(root: Path) -> None:
    path = root / "models" / "tiny" / "model.safetensors"
    weights = safetensors.torch.load_file(path)
    weights["model.norm.weight"] = torch.full_like(weights["model.norm.weight"], torch.nan)
    safetensors.torch.save_file(weights, path, metadata={"format": "pt"})
    assert failed(train_here(run_file(), root)) == (
        Reason.NON_FINITE_LOSS,
        "step 1 has loss nan and gradient norm nan; lower spec.lora.learningRate or raise spec.lora.warmupSteps",
    )


@pytest.mark.parametrize(("number", "found"), [(errno.EACCES, "is not open"), (errno.EROFS, "is mounted read-only")])
def test_a_volume_that_does_not_let_the_pod_in_is_named_and_not_tried_again(number: int, found: str) -> None:
    failure = failure_of(OSError(number, os.strerror(number), "/volumes/halo-artifacts/uid-1"))
    outcome = Outcome(result="Failed", reason=failure.reason, message=str(failure))
    assert (outcome.reason, outcome.retriable) == (Reason.PERMISSION_DENIED, False)
    assert outcome.message == (
        f"/volumes/halo-artifacts/uid-1 {found} to user {os.geteuid()} and group {os.getegid()} of the run's pods; "
        "let them read models and data, and write to the artifacts claim"
    )


def test_a_place_that_cannot_be_written_to_ends_the_run_before_its_first_step(root: Path) -> None:
    (root / "artifacts" / "run").touch()
    report = train_here(run_file(), root)
    assert failed(report)[1].startswith("FileExistsError")
    assert report.progress is None


@pytest.mark.parametrize(
    ("kind", "modules", "unfit"),
    [
        ("llama", ["q_proj", "up_porj"], "up_porj"),
        ("llama", ["all-linear", "q_proj"], "all-linear"),
        ("qwen3_moe", ["q_proj", "gate_porj"], "gate_porj"),
    ],
)
def test_a_name_that_would_train_nothing_is_named(kind: str, modules: list[str], unfit: str) -> None:
    """PEFT passes over a name that no layer has, where another one has some."""
    base = AutoModelForCausalLM.from_config(tiny_config(kind))
    with pytest.raises(RunFailure) as refused:
        attach_lora(base, FrozenLora(dataset="chat", rank=4, alpha=8, target_modules=modules), 0)
    assert str(refused.value).startswith(f"spec.lora.targetModules {unfit} can't get an adapter; use some of ")


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (
            {"dropout": 0.1},
            "spec.lora.dropout: found 0.1, and an adapter of fused experts or their router takes none; "
            "leave it out, or name in targetModules no layers of experts",
        ),
        (
            {"target_modules": ["q_proj", "up_proj"]},
            "spec.lora.targetModules: q_proj, up_proj are not all that the base has fused (Cannot convert PEFT target(s) up_proj "
            "without also targeting gate_proj because they are fused into gate_up_proj.); name those too, or none",
        ),
    ],
)
def test_what_fused_experts_do_not_take_is_named(more: dict[str, Any], sentence: str) -> None:
    base = AutoModelForCausalLM.from_config(tiny_config("qwen3_moe"))
    with pytest.raises(RunFailure) as refused:
        attach_lora(base, FrozenLora(dataset="chat", rank=4, alpha=8, **more), 0)
    assert str(refused.value) == sentence


@pytest.mark.parametrize(
    "modules", [["layers.0.self_attn.q_proj", "v_proj"], ["gate_proj", "up_proj", "down_proj", "gate"]]
)
def test_part_of_a_path_and_a_name_of_fused_experts_are_layers(modules: list[str]) -> None:
    base = AutoModelForCausalLM.from_config(tiny_config("qwen3_moe"))
    attach_lora(base, FrozenLora(dataset="chat", rank=4, alpha=8, target_modules=modules), 0)


def test_an_adapter_has_no_weights_of_the_base(root: Path) -> None:
    """Also not of an adapted head, which PEFT would write whole: no server takes them."""
    assert train_here(run_file(lora={"targetModules": ["q_proj", "lm_head"]}), root).progress
    weights = safetensors.torch.load(adapter_bytes(root)["adapter_model.safetensors"])
    assert {name.rpartition(".lora_")[2] for name in weights} == {"A.weight", "B.weight"}
    assert any("lm_head" in name for name in weights)


def test_layers_that_are_not_there_are_named(root: Path) -> None:
    assert failed(train_here(run_file(lora={"targetModules": ["query"]}), root)) == (
        Reason.INVALID_SPEC,
        "spec.lora.targetModules query can't get an adapter; "
        "use some of down_proj, gate_proj, k_proj, lm_head, o_proj, q_proj, up_proj, v_proj",
    )


@pytest.mark.parametrize("damage", ["changed", "short", "gone"])
def test_a_checkpoint_that_is_not_the_reported_one_is_refused(damage: str, root: Path) -> None:
    last = train_here(run_file(), root).checkpoints[-1]
    file = root / "artifacts" / "run" / "checkpoints" / "step-6" / "trainer" / "optimizer.safetensors"
    if damage == "changed":
        data = bytearray(file.read_bytes())
        data[-1] ^= 1
        file.write_bytes(data)
    elif damage == "short":
        os.truncate(file, 100)
    else:
        file.unlink()
    resume = {"step": 6, "uri": last.uri, "digest": last.digest}
    reason, message = failed(train_here(run_file(output="a2", resume=resume), root))
    assert reason == Reason.CHECKPOINT_CORRUPT
    assert message.startswith(f"checkpoint of step 6 at {last.uri}: found sha256:")
    assert f"it was written with {last.digest}" in message


def test_a_checkpoint_that_another_pod_changes_between_the_check_and_the_load_is_refused(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base is loaded in between, which takes minutes."""
    last = train_here(run_file(), root).checkpoints[-1]
    theirs = root / "artifacts" / "run" / "checkpoints" / "step-6" / "adapter" / "adapter_model.safetensors"

    def load(*arguments: Any) -> Any:
        tensors = safetensors.torch.load(theirs.read_bytes())
        theirs.write_bytes(safetensors.torch.save({name: tensor + 1 for name, tensor in tensors.items()}))
        return load_base(*arguments)

    monkeypatch.setattr("halo_trainer.run.load_base", load)
    resume = {"step": 6, "uri": last.uri, "digest": last.digest}
    reason, message = failed(train_here(run_file(output="a2", resume=resume), root))
    assert reason == Reason.CHECKPOINT_CORRUPT
    assert "found adapter/adapter_model.safetensors of sha256:" in message


def test_what_is_vouched_for_is_what_was_in_memory(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another pod that mounts the claim is quicker than the hash over what was just written."""

    def write(path: Path, data: bytes) -> None:
        write_durably(path, data)
        if path.name == "adapter_config.json":
            path.with_name("adapter_model.safetensors").write_bytes(b"another's")

    monkeypatch.setattr("halo_trainer.adapter.write_durably", write)
    report = train_here(run_file(), root)
    reason, message = failed(report)
    assert (reason, report.checkpoints) == (Reason.CRASHED, ())
    assert "found adapter/adapter_model.safetensors changed a moment after it was written" in message


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small volume needs root")
def test_a_full_volume_is_named_and_the_earlier_checkpoints_stay(root: Path) -> None:
    """A tmpfs with room for one and a half checkpoints."""
    one = train_here(run_file(output="measure", steps=2), root)
    folder = root / "artifacts" / "measure" / "checkpoints" / "step-2"
    size = sum(file.size for file in folder_files(folder))
    volume = root / "artifacts" / "small"
    volume.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size * 3 // 2}", "tmpfs", volume], check=True)
    try:
        report = train_here(run_file(output="small"), root)
        reason, message = failed(report)
        assert reason == Reason.DISK_FULL
        assert message.startswith(f"writing {volume}/checkpoints/step-4: the volume is full (")
        assert message.endswith("enlarge the volume or delete old checkpoints and adapters on it")
        assert report.outcome
        assert report.outcome.checkpoint
        assert not report.outcome.retriable
        assert os.listdir(volume / "checkpoints") == ["step-2"]
        assert files_digest(folder_files(volume / "checkpoints" / "step-2")) == report.outcome.checkpoint.digest
        assert one.checkpoints[0].step == 2
    finally:
        subprocess.run(["umount", volume], check=True)
