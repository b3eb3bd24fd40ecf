"""`publish`: a checkpoint's adapter at its place, whole or not at all, without torch."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from trainer_support import adapter_bytes, run_file, start, train_here

from halo_api.conditions import Reason
from halo_api.report import CheckpointReport, Outcome, Report
from halo_api.run_file import RunFile

PUBLISHED = "adapters/run"


@pytest.fixture
def last(root: Path) -> CheckpointReport:
    return train_here(run_file(), root).checkpoints[-1]


def publish(root: Path, last: CheckpointReport, tmp_path: Path) -> Outcome:
    """Publish as a pod would, where torch can't be imported."""
    (tmp_path / "no" / "torch").mkdir(parents=True, exist_ok=True)
    (tmp_path / "no" / "torch" / "__init__.py").write_text("raise ImportError('publish needs no torch')")
    plan = {"checkpoint": {"step": last.step, "uri": last.uri, "digest": last.digest}}
    text = run_file("publish").model_dump(by_alias=True) | {
        "publish": plan | {"output": f"pvc://artifacts/{PUBLISHED}"}
    }
    path = os.pathsep.join([str(tmp_path / "no"), *sys.path])
    process = start("publish", RunFile.model_validate(text), root, PYTHONPATH=path)
    output, _ = process.communicate(timeout=120)
    report = Report.model_validate_json((root / "report.json").read_bytes())
    assert report.outcome, output.decode()
    assert process.returncode == (0 if report.outcome.result == "Succeeded" else 1), output.decode()
    return report.outcome


def published(root: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (root / "artifacts" / PUBLISHED).iterdir()}


def test_a_checkpoint_is_published_whole_and_only_once(root: Path, last: CheckpointReport, tmp_path: Path) -> None:
    outcome = publish(root, last, tmp_path)
    assert (outcome.result, outcome.reason) == ("Succeeded", Reason.SUCCEEDED), outcome.message
    assert outcome.adapter
    assert (outcome.adapter.step, outcome.adapter.uri) == (last.step, f"pvc://artifacts/{PUBLISHED}")
    # The last checkpoint's adapter is the run's own, byte for byte.
    assert published(root) == adapter_bytes(root)
    place = root / "artifacts" / PUBLISHED
    before = place.stat().st_ino
    again = publish(root, last, tmp_path)
    assert again.adapter == outcome.adapter
    assert place.stat().st_ino == before
    (place / "adapter_config.json").write_text("{}")
    assert publish(root, last, tmp_path).adapter == outcome.adapter
    assert published(root) == adapter_bytes(root)
    assert os.listdir(place.parent) == ["run"]


@pytest.mark.parametrize("damage", ["changed", "gone"])
def test_a_checkpoint_that_is_not_the_reported_one_is_not_published(
    damage: str, root: Path, last: CheckpointReport, tmp_path: Path
) -> None:
    folder = root / "artifacts" / "run" / "checkpoints" / f"step-{last.step}"
    if damage == "changed":
        (folder / "trainer" / "state.json").write_text("{}")
    else:
        folder.rename(folder.with_name("elsewhere"))
    outcome = publish(root, last, tmp_path)
    assert (outcome.result, outcome.reason) == ("Failed", Reason.CHECKPOINT_CORRUPT)
    found = "nothing there" if damage == "gone" else "sha256:"
    assert outcome.message.startswith(f"checkpoint of step {last.step} at {last.uri}: found {found}")
    assert f"it was written with {last.digest}" in outcome.message
    assert not (root / "artifacts" / PUBLISHED).exists()
