"""The published folder: what PEFT and vLLM load, readable by others, and nothing that varies."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch
from peft import PeftModel
from trainer_support import chat, run_file, train_here, write_rows
from transformers import AutoModelForCausalLM, AutoTokenizer

from halo_api.digests import files_digest
from halo_api.retention import NAMED_STEPS_NAME
from halo_trainer.checkpoints.digest import folder_files
from halo_trainer.cli import main


def test_the_adapter_loads_and_changes_the_answers(root: Path) -> None:
    report = train_here(run_file(), root)
    assert report.outcome
    adapter = report.outcome.adapter
    assert adapter
    folder = root / "artifacts" / "run" / "adapter"
    assert adapter.digest == files_digest(folder_files(folder))
    assert [file.path for file in adapter.files] == ["adapter_config.json", "adapter_model.safetensors"]
    assert adapter.step == 6
    assert len(report.outcome.termination_message()) <= 4096
    assert report.outcome.seconds.keys() == {"load", "train", "save", "publish"}
    assert all(spent > 0 for spent in report.outcome.seconds.values())
    ids = torch.tensor([[5, 6, 7, 8]])
    base = AutoModelForCausalLM.from_pretrained(root / "models" / "tiny")
    before = base(ids).logits
    after = PeftModel.from_pretrained(base, str(folder))(ids).logits
    assert (after - before).abs().max() > 0.01


def test_the_folder_is_readable_and_has_the_names_that_servers_expect(root: Path) -> None:
    train_here(run_file(), root)
    folder = root / "artifacts" / "run" / "adapter"
    assert folder.stat().st_mode & 0o777 == 0o755
    assert {path.stat().st_mode & 0o777 for path in folder.iterdir()} == {0o644}
    pattern = r"base_model\.model\.model\.layers\.[01]\.(self_attn|mlp)\.[a-z]+_proj\.lora_[AB]\.weight"
    tensors = safetensors.torch.load_file(folder / "adapter_model.safetensors")
    assert len(tensors) == 2 * 7 * 2
    assert all(re.fullmatch(pattern, name) for name in tensors)
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}
    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["base_model_name_or_path"]) == (4, 8, "tiny")
    assert config["target_modules"] == sorted(config["target_modules"])
    assert str(root) not in json.dumps(config)


def kept(root: Path) -> list[str]:
    return sorted(path.name for path in (root / "artifacts" / "run" / "checkpoints").iterdir())


@pytest.mark.parametrize(
    ("named", "stay"),
    [
        (None, [1, 2, 3, 4, 5, 6]),
        ("half a fi", [1, 2, 3, 4, 5, 6]),
        ("null", [1, 2, 3, 4, 5, 6]),
        ("[]", [1, 2, 3, 4, 5, 6]),
        ("[1]", [1, 2, 3, 4, 5, 6]),
        ("[1, 4]", [1, 4, 5, 6]),
    ],
)
def test_a_checkpoint_goes_only_when_the_status_went_on_without_it(
    named: str | None, stay: list[int], root: Path
) -> None:
    if named is not None:
        (root / NAMED_STEPS_NAME).write_text(named)
    report = train_here(run_file(saveSteps=1), root)
    assert [checkpoint.step for checkpoint in report.checkpoints] == stay
    assert kept(root) == [f"step-{step}" for step in stay]


def test_while_nobody_answers_the_newest_is_held_back_and_the_outcome_tells_it(root: Path) -> None:
    report = train_here(run_file(steps=11, saveSteps=1), root)
    assert [checkpoint.step for checkpoint in report.checkpoints] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert report.outcome
    assert report.outcome.checkpoint == report.held
    assert report.held
    assert report.held.step == 11
    assert len(kept(root)) == 9
    assert files_digest(folder_files(root / "artifacts" / "run" / "checkpoints" / "step-11")) == report.held.digest


def test_the_room_for_more_checkpoints_is_told(root: Path) -> None:
    """At the last save; the guess before the first is near."""
    disk = train_here(run_file(), root).disk
    folder = root / "artifacts" / "run" / "checkpoints" / "step-6"
    assert disk
    assert disk.checkpoint_bytes == sum(file.size for file in folder_files(folder))
    assert 0 < disk.free_bytes <= shutil.disk_usage(folder).total


def test_a_bf16_base_trains_a_fp32_adapter(root: Path) -> None:
    run = run_file()
    run = run.model_copy(update={"needed_base": run.base.model_copy(update={"dtype": "bf16"})})
    report = train_here(run, root)
    assert report.outcome
    assert report.outcome.result == "Succeeded", report.outcome.message
    tensors = safetensors.torch.load_file(root / "artifacts" / "run" / "adapter" / "adapter_model.safetensors")
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}


def test_what_sample_can_not_read_is_one_sentence(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    base = ["sample", "--base", str(root / "models" / "tiny")]
    assert main([*base, "--prompts", str(root / "none.txt")]) == 1
    told = capsys.readouterr().err
    assert (told.count("\n"), "none.txt" in told) == (1, True)
    with pytest.raises(SystemExit):
        main([*base, "--prompt", "sky?", "--batch", "0"])
    assert "argument --batch: found '0'; use a number from 1 on" in capsys.readouterr().err


def test_sample_counts_the_answers_that_are_as_expected(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Held-out rows whose answers are the base's own: the base gives them all, an adapter others."""
    train_here(run_file(), root)
    questions = [f"Colour of {thing}?" for thing in ("sky", "grass", "snow")]
    arguments = ["sample", "--base", "pvc://models/tiny", "--volumes", str(root), "--max-new-tokens", "8"]
    asked = [part for question in questions for part in ("--prompt", question)]
    capsys.readouterr()
    assert main([*arguments, *asked, "--json"]) == 0
    answers = [json.loads(line)["answer"] for line in capsys.readouterr().out.splitlines()]
    heldout = write_rows(root / "heldout.jsonl", [chat(q, a) for q, a in zip(questions, answers, strict=True)])
    assert main([*arguments, "--prompts", str(heldout)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "exact: 3 of 3"
    assert main([*arguments, "--prompts", str(heldout), "--adapter", "pvc://artifacts/run/adapter"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "exact: 0 of 3"


def test_the_answers_of_a_batch_are_those_of_each_prompt(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = AutoTokenizer.from_pretrained(root / "models" / "tiny")
    assert tokenizer.eos_token_id is not None
    arguments = ["sample", "--base", str(root / "models" / "tiny"), "--prompt", "sky?", "--prompt", "Colour of grass?"]
    answers = []
    for batch in ("1", "2"):
        assert main([*arguments, "--max-new-tokens", "12", "--batch", batch, "--json"]) == 0
        answers.append(capsys.readouterr().out)
    assert answers[0] == answers[1]
