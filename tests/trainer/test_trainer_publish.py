"""`publish`: an adapter where its digest says, whole or not at all, whoever is killed, without torch."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Literal

import pytest
from trainer_support import adapter_bytes, run_file, start, train_here

from halo_api.conditions import Reason
from halo_api.digests import files_digest
from halo_api.report import AdapterReport, CheckpointReport, Outcome, Report
from halo_api.run_file import RunFile, address, volume_path
from halo_trainer.checkpoints.digest import folder_files
from halo_trainer.files import copy_durably
from halo_trainer.store import Changed, copy_whole

STORE = "adapters"

# The trainer, which dies without a word before its n-th step on files.
DYING = """
import os, signal, sys
from halo_trainer.cli import main
left = int(sys.argv.pop(1))
def step(event, arguments):
    global left
    if event in ("open", "os.mkdir", "os.rename", "os.chmod", "os.remove", "os.rmdir", "os.listdir", "os.scandir"):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(step)
code = main()
print("steps left", left)
sys.exit(code)
"""


@pytest.fixture
def last(root: Path) -> CheckpointReport:
    return train_here(run_file(), root).checkpoints[-1]


def plan(uri: str, digest: str, step: int = 6, folder: Literal["", "adapter/"] = "") -> RunFile:
    text = run_file("publish").model_dump(by_alias=True)
    to_do = {
        "source": {"step": step, "uri": uri, "digest": digest},
        "folder": folder,
        "store": f"pvc://artifacts/{STORE}",
    }
    return RunFile.model_validate(text | {"publish": to_do})


def of_checkpoint(last: CheckpointReport) -> RunFile:
    return plan(last.uri, last.digest, last.step, "adapter/")


def trained(root: Path, folder: str = "run/adapter", size: int = 2_000_000) -> RunFile:
    """An adapter as training leaves it, and the run file of the pod that publishes it."""
    there = root / "artifacts" / folder
    (there / "tokenizer").mkdir(parents=True)
    (there / "adapter_config.json").write_text("{}")
    (there / "adapter_model.safetensors").write_bytes(random.Random(7).randbytes(size))
    (there / "tokenizer" / "vocab.txt").write_text("a\nb\n")
    return plan(f"pvc://artifacts/{folder}", files_digest(folder_files(there)))


def publish(root: Path, run: RunFile, tmp_path: Path) -> Outcome:
    """Publish as a pod would, where torch can't be imported."""
    (tmp_path / "no" / "torch").mkdir(parents=True, exist_ok=True)
    (tmp_path / "no" / "torch" / "__init__.py").write_text("raise ImportError('publish needs no torch')")
    path = os.pathsep.join([str(tmp_path / "no"), *sys.path])
    process = start("publish", run, root, PYTHONPATH=path)
    output, _ = process.communicate(timeout=120)
    report = Report.model_validate_json((root / "report.json").read_bytes())
    assert report.outcome, output.decode()
    assert process.returncode == (0 if report.outcome.result == "Succeeded" else 1), output.decode()
    return report.outcome


def place(root: Path, made: AdapterReport | None) -> Path:
    assert made
    folder = root / "artifacts" / STORE / address(made.digest)
    assert made.uri == f"pvc://artifacts/{STORE}/{folder.name}"
    assert folder_files(folder) == made.files
    assert files_digest(made.files) == made.digest
    return folder


def test_an_adapter_is_published_whole_and_only_once(root: Path, tmp_path: Path) -> None:
    run = trained(root)
    outcome = publish(root, run, tmp_path)
    assert (outcome.result, outcome.reason) == ("Succeeded", Reason.SUCCEEDED), outcome.message
    folder = place(root, outcome.adapter)
    assert outcome.adapter
    assert outcome.adapter.files == folder_files(root / "artifacts" / "run" / "adapter")
    before = folder.stat().st_ino
    # Another run with the same bytes shares it.
    assert publish(root, of_run(run, "uid-2"), tmp_path).adapter == outcome.adapter
    assert folder.stat().st_ino == before
    for damage in ("changed", "more"):
        (folder / ("adapter_config.json" if damage == "changed" else "more.json")).write_text("[]")
        assert publish(root, run, tmp_path).adapter == outcome.adapter
        place(root, outcome.adapter)
    assert os.listdir(folder.parent) == [folder.name]


def test_the_adapter_of_a_checkpoint_is_the_runs_own_byte_for_byte(
    root: Path, last: CheckpointReport, tmp_path: Path
) -> None:
    outcome = publish(root, of_checkpoint(last), tmp_path)
    folder = place(root, outcome.adapter)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == adapter_bytes(root)
    left = root / "artifacts" / "run" / "adapter"
    own = publish(root, plan("pvc://artifacts/run/adapter", files_digest(folder_files(left))), tmp_path)
    assert own.adapter == outcome.adapter


@pytest.mark.parametrize("damage", ["changed", "gone"])
def test_a_checkpoint_that_is_not_the_reported_one_is_not_published(
    damage: str, root: Path, last: CheckpointReport, tmp_path: Path
) -> None:
    folder = root / "artifacts" / "run" / "checkpoints" / f"step-{last.step}"
    if damage == "changed":
        (folder / "trainer" / "state.json").write_text("{}")
    else:
        folder.rename(folder.with_name("elsewhere"))
    outcome = publish(root, of_checkpoint(last), tmp_path)
    assert (outcome.result, outcome.reason) == ("Failed", Reason.CHECKPOINT_CORRUPT)
    found = "nothing there" if damage == "gone" else "sha256:"
    assert outcome.message.startswith(f"checkpoint of step {last.step} at {last.uri}: found {found}")
    assert f"it was written with {last.digest}" in outcome.message
    assert not (root / "artifacts" / STORE).exists()


def test_an_adapter_that_is_not_the_trained_one_is_not_published(root: Path, tmp_path: Path) -> None:
    run = trained(root)
    (root / "artifacts" / "run" / "adapter" / "tokenizer" / "vocab.txt").unlink()
    outcome = publish(root, run, tmp_path)
    assert (outcome.result, outcome.reason) == ("Failed", Reason.CHECKPOINT_CORRUPT)
    assert outcome.message.startswith("adapter of step 6 at pvc://artifacts/run/adapter: found sha256:")
    assert not (root / "artifacts" / STORE).exists()


def test_two_runs_that_publish_the_same_bytes_at_once_do_not_harm_each_other(root: Path, tmp_path: Path) -> None:
    run = trained(root, size=20_000_000)
    processes = []
    for number in range(4):
        (root / str(number)).mkdir()
        path = root / str(number) / "run.json"
        path.write_text(of_run(run, f"uid-{number}").canonical())
        processes.append(dying(10**9, root, path))
    store, folders = root / "artifacts" / STORE, set[int]()
    while any(process.poll() is None for process in processes):
        folders |= {path.stat().st_ino for path in store.glob("sha256-*")}
    # Whoever read the first one went on reading it.
    assert len(folders) == 1
    for number, process in enumerate(processes):
        output, _ = process.communicate(timeout=240)
        assert process.returncode == 0, output.decode()
        report = Report.model_validate_json((root / str(number) / "report.json").read_bytes())
        assert report.outcome
        folder = place(root, report.outcome.adapter)
    assert os.listdir(folder.parent) == [folder.name]


@pytest.mark.parametrize("planted", ["file", "dangling link", "link to the right bytes"])
def test_what_lies_where_an_adapter_belongs_does_not_keep_it_away(planted: str, root: Path, tmp_path: Path) -> None:
    run = trained(root)
    assert run.publish
    at = root / "artifacts" / STORE / address(run.publish.source.digest)
    at.parent.mkdir()
    if planted == "file":
        at.write_text("mine")
    else:
        at.symlink_to(root / "artifacts" / "run" / ("adapter" if "right" in planted else "nothing"))
    place(root, publish(root, run, tmp_path).adapter)


def test_a_link_that_somebody_puts_on_the_claim_leads_neither_to_the_pods_own_files_nor_over_them(
    root: Path, tmp_path: Path
) -> None:
    """Between the check and the copy: a copy of the pod's token would lie where everybody reads."""
    files = folder_files(Path(volume_path(trained(root).publish.source.uri, str(root))))  # type: ignore[union-attr]
    source, store, work = root / "artifacts" / "run" / "adapter", root / "artifacts" / STORE, tmp_path / "report.json"
    with tempfile.TemporaryDirectory(dir="/dev/shm") as token:
        Path(token, "token").write_text("secret")
        (source / "adapter_config.json").unlink()
        (source / "adapter_config.json").symlink_to(f"{token}/token")
        with pytest.raises(Changed, match=r"adapter_config\.json, which leads to another volume"):
            copy_whole(files, source, store / "one")
        (source / "adapter_config.json").unlink()
        (source / "adapter_config.json").write_text('{"outcome": "forged"}')
        link = store / "two" / "adapter_config.json"
        link.parent.mkdir(parents=True)
        link.symlink_to(work)
        with pytest.raises(FileExistsError):
            copy_durably(source / "adapter_config.json", link, source.stat().st_dev)
    assert not work.exists()
    assert sorted(os.listdir(store)) == ["two"]


def of_run(run: RunFile, uid: str) -> RunFile:
    return run.model_copy(update={"run": run.run.model_copy(update={"uid": uid})})


def dying(steps: int, root: Path, run: Path) -> subprocess.Popen[bytes]:
    report = run.with_name("report.json")
    flags = ("--run-file", str(run), "--volumes", str(root), "--report", str(report))
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", DYING, str(steps), "publish", *flags]
    return subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def killed(steps: int, root: Path, run: Path, after: float | None = None) -> int | None:
    """Publish in a process that dies; return the steps that it took if it did not."""
    process = dying(steps, root, run)
    try:
        output, _ = process.communicate(timeout=after)
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
    if process.returncode == -signal.SIGKILL:
        return None
    assert process.returncode == 0, output.decode()
    return steps - int(output.decode().rsplit(" ", 1)[1])


def seen(root: Path) -> dict[str, str]:
    """What whoever looks into the store finds there: the digest of each folder."""
    store = root / "artifacts" / STORE
    found = [path for path in store.iterdir() if not path.name.startswith(".")] if store.exists() else []
    return {path.name: files_digest(folder_files(path)) for path in found}


@pytest.mark.parametrize("rounds", [pytest.param(8, id="few"), pytest.param(100, marks=pytest.mark.slow, id="hundred")])
def test_a_process_that_is_killed_at_any_point_leaves_no_adapter_in_part_and_the_next_one_goes_on(
    rounds: int, tmp_path: Path
) -> None:
    """Each is killed before one of its steps on files, or at any time; a few in a row, from an empty store or a damaged one."""
    dice = random.Random(2026)
    total = 0
    for number in range(rounds):
        root = tmp_path / str(number)
        run = trained(root)
        assert run.publish
        right = run.publish.source.digest
        name, allowed = address(right), [{}, {address(right): right}]
        if number % 2:
            damaged = root / "artifacts" / STORE / name
            damaged.mkdir(parents=True)
            (damaged / "adapter_config.json").write_text("other")
            allowed.append(seen(root))
        path = root / "run.json"
        path.write_text(run.canonical())
        for _ in range(dice.randint(1, 3) if total else 0):
            killed(dice.randint(1, total), root, path, after=dice.choice([None, None, dice.uniform(0.1, 1.5)]))
            assert seen(root) in allowed
        total = max(killed(10**9, root, path) or 0, total)
        assert seen(root) == {name: right}
        assert os.listdir(root / "artifacts" / STORE) == [name], "nothing is left of those that were killed"
