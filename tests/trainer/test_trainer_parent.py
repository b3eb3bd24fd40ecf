"""Continuing an adapter: from its very weights, to the same bytes each time, and only if it is the one that was verified."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from peft import PeftModel
from trainer_support import adapter_bytes, killed, run_file, start, train_here
from transformers import AutoModelForCausalLM

from halo_api.adapter import CONFIG, WEIGHTS
from halo_api.digests import files_digest
from halo_api.report import Outcome, Report
from halo_api.run_file import RunFile
from halo_trainer.budget import Budget
from halo_trainer.checkpoints.digest import folder_files
from halo_trainer.model import LINEAR_LAYERS
from halo_trainer.parallel.ranks import Ranks
from halo_trainer.parallel.roll_call import RollCall
from halo_trainer.reporting import Reporting
from halo_trainer.run import Given
from halo_trainer.train import load

DROPOUT = {"dropout": 0.1}
LAYERS = ["down_proj", "gate_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"]


def trained(root: Path, name: str, **changes: Any) -> dict[str, Any]:
    """Train an adapter and return it as a parent."""
    outcome = train_here(run_file(output=name, **changes), root).outcome
    assert outcome
    assert outcome.result == "Succeeded", outcome.message
    files = folder_files(root / "artifacts" / name / "adapter")
    listed = {file.path: file.sha256 for file in files}
    return {"name": name, "uri": f"pvc://artifacts/{name}/adapter", "digest": files_digest(files), "files": listed}


@pytest.fixture
def parent(root: Path) -> dict[str, Any]:
    return trained(root, "parent")


def child(parent: dict[str, Any], output: str = "child", lora: dict[str, Any] | None = None, **more: Any) -> RunFile:
    return run_file(output=output, seed=more.pop("seed", 7), lora=lora, parent=parent, **more)


def refusal(run: RunFile, root: Path) -> str:
    """Return why the run could not start; another attempt would not change that."""
    outcome = train_here(run, root).outcome
    assert outcome
    assert (outcome.result, outcome.reason, outcome.retriable) == ("Failed", "ParentUnfit", False), outcome.message
    assert not (root / "artifacts" / "child" / "checkpoints").exists()
    return outcome.message


def test_before_its_first_step_a_child_computes_what_its_parent_does(root: Path, parent: dict[str, Any]) -> None:
    file, ranks = child(parent), Ranks()
    alone = RollCall(ranks, lambda failure: None)
    run = load(Given(file, str(root), Reporting(root / "report.json", file), ranks, Budget()), alone)
    run.model.eval()
    ids = torch.tensor([[5, 6, 7, 8, 9]])
    base = AutoModelForCausalLM.from_pretrained(root / "models" / "tiny")
    bare = base(ids).logits
    theirs = PeftModel.from_pretrained(base, str(root / "artifacts" / "parent" / "adapter")).eval()(ids).logits
    assert run.state.step == 0
    assert torch.equal(run.model(ids).logits, theirs)
    assert not torch.allclose(theirs, bare, atol=1e-3)


def test_a_child_is_the_same_each_time_also_from_a_checkpoint(root: Path, parent: dict[str, Any]) -> None:
    straight = train_here(child(parent, "straight", DROPOUT), root)
    train_here(child(parent, "again", DROPOUT), root)
    assert adapter_bytes(root, "again") == adapter_bytes(root, "straight")
    assert adapter_bytes(root, "straight")[WEIGHTS] != adapter_bytes(root, "parent")[WEIGHTS]
    assert adapter_bytes(root, "straight")[CONFIG] == adapter_bytes(root, "parent")[CONFIG].replace(
        b'"lora_dropout": 0.0', b'"lora_dropout": 0.1'
    )
    # A resume's weights are its checkpoint's: the parent is not even needed any more.
    shutil.rmtree(root / "artifacts" / "parent")
    for checkpoint in straight.checkpoints:
        resume = {"step": checkpoint.step, "uri": checkpoint.uri, "digest": checkpoint.digest}
        train_here(child(parent, f"from-{checkpoint.step}", DROPOUT, resume=resume), root)
        assert adapter_bytes(root, f"from-{checkpoint.step}") == adapter_bytes(root, "straight")


def test_a_child_that_was_killed_goes_on_to_the_same_bytes(root: Path, parent: dict[str, Any]) -> None:
    train_here(child(parent, "straight", DROPOUT, steps=40), root)
    resume = killed(child(parent, "a1", DROPOUT, steps=40), root, checkpoints=1)
    assert finished(child(parent, "a2", DROPOUT, steps=40, resume=resume), root).result == "Succeeded"
    assert adapter_bytes(root, "a2") == adapter_bytes(root, "straight")


def finished(run: RunFile, root: Path) -> Outcome:
    """Train as a pod would, and return how it ended."""
    process = start("train", run, root)
    output, _ = process.communicate(timeout=300)
    outcome = Report.model_validate_json((root / "report.json").read_bytes()).outcome
    assert outcome, output.decode()
    return outcome


def test_all_processes_start_from_the_parent(root: Path, parent: dict[str, Any]) -> None:
    train_here(child(parent, "one"), root)
    outcome = finished(child(parent, "two", layout={"gpusPerNode": 2}), root)
    assert outcome.result == "Succeeded", outcome.message
    one, two = (safetensors.torch.load(adapter_bytes(root, name)[WEIGHTS]) for name in ("one", "two"))
    assert one.keys() == two.keys()
    # One that had begun with other weights would have had other gradients.
    difference = torch.cat([(one[name] - two[name]).reshape(-1) for name in one]).norm()
    assert difference / torch.cat([tensor.reshape(-1) for tensor in one.values()]).norm() < 1e-5
    (root / "artifacts" / "parent" / "adapter" / CONFIG).unlink()
    outcome = finished(child(parent, "three", layout={"gpusPerNode": 2}), root)
    assert (outcome.reason, outcome.retriable) == ("ParentUnfit", False)


def flip(folder: Path) -> None:
    data = bytearray((folder / WEIGHTS).read_bytes())
    data[-1] ^= 1
    (folder / WEIGHTS).write_bytes(data)


def cut(folder: Path) -> None:
    (folder / CONFIG).write_bytes((folder / CONFIG).read_bytes()[:-1])


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (flip, f"with {WEIGHTS} of sha256:"),
        (cut, f"with {CONFIG} of sha256:"),
        (lambda folder: (folder / CONFIG).unlink(), f"with no {CONFIG}: not as it was verified"),
        (lambda folder: (folder / "more.bin").touch(), "with more.bin, which is not one of its files"),
        (shutil.rmtree, "with nothing there"),
    ],
)
def test_other_files_than_were_verified_are_never_loaded(
    harm: Callable[[Path], None], says: str, root: Path, parent: dict[str, Any]
) -> None:
    harm(root / "artifacts" / "parent" / "adapter")
    said = refusal(child(parent), root)
    assert said.startswith(f"spec.parent.adapter: found parent at pvc://artifacts/parent/adapter {says}")
    assert said.endswith("; restore its folder from a backup, or name another adapter")
    assert "other files than those of sha256:" in refusal(child(parent | {"files": {}}), root) or "nothing" in says


def other_base(run: RunFile) -> RunFile:
    said = run.to_json()
    return RunFile.model_validate(said | {"base": said["base"] | {"revision": "abcdef1"}})


def test_only_its_like_is_continued(root: Path, parent: dict[str, Any]) -> None:
    for run, says in (
        (child(parent, lora={"rank": 8}), "has r 4 and not 8, which the run has"),
        (child(parent, lora={"alpha": 4}), "has lora_alpha 8 and not 4.0, which the run has"),
        (other_base(child(parent)), "has revision 'abcdef0' and not 'abcdef1', which the run has"),
    ):
        assert says in refusal(run, root)


def test_it_trains_the_layers_that_its_parent_did(root: Path) -> None:
    two = trained(root, "two", lora={"targetModules": ["q_proj", "v_proj"]})
    said = refusal(child(two), root)
    assert (
        f"found {', '.join(LAYERS)} (unset: every linear layer), and parent two has weights of q_proj, v_proj" in said
    )
    assert "found q_proj, and parent two" in refusal(child(two, lora={"targetModules": ["q_proj"]}), root)
    every = trained(root, "every")
    for asked in (LAYERS, [LINEAR_LAYERS]):
        outcome = train_here(child(every, lora={"targetModules": asked}), root).outcome
        assert outcome
        assert outcome.result == "Succeeded", outcome.message
    outcome = train_here(child(two, lora={"targetModules": ["v_proj", "q_proj"]}), root).outcome
    assert outcome
    assert outcome.result == "Succeeded", outcome.message


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda tensors: tensors.popitem(), "has 27 weights, and 1 are not as the run's 28: base_model.model."),
        (lambda tensors: tensors.update(x=torch.zeros(1)), "spec.lora.targetModules: found "),
        (lambda tensors: tensors.update({k: v[:1] for k, v in tensors.items() if k.endswith("q_proj.lora_A.weight")}), "and 2 are not as the run's 28"),
    ],
)  # fmt: skip
def test_every_weight_is_there_and_none_more(harm: Callable[[dict[str, Any]], Any], says: str, root: Path) -> None:
    """Also of files that are those that were verified: what signs them does not look inside."""
    trained(root, "parent")
    folder = root / "artifacts" / "parent" / "adapter"
    tensors = safetensors.torch.load_file(folder / WEIGHTS)
    harm(tensors)
    safetensors.torch.save_file(tensors, folder / WEIGHTS)
    files = folder_files(folder)
    forged = {"name": "parent", "uri": "pvc://artifacts/parent/adapter", "digest": files_digest(files), "files": {}}
    assert says in refusal(child(forged), root)
    (folder / WEIGHTS).write_bytes(b"not safetensors")
    forged["digest"] = files_digest(folder_files(folder))
    assert "with files that can't be read" in refusal(child(forged), root)
