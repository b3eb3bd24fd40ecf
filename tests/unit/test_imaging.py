"""The image tools hold to their own promises: nothing an image is made of escapes its key, and a CPU torch is an honest wheel."""

import base64
import csv
import hashlib
import io
import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hack.imaging import cputorch, layout, wheelhouse
from hack.imaging.common import REPO, digest
from hack.imaging.images import IMAGES, Image


def copied(image: Image) -> list[str]:
    """What the image's Dockerfile copies from the checkout."""
    lines = (REPO / image.dockerfile).read_text().splitlines()
    return [path for line in lines if line.startswith("COPY ") for path in line.split()[1:-1]]


@pytest.mark.parametrize("image", IMAGES.values(), ids=IMAGES)
def test_an_images_key_covers_all_that_its_dockerfile_copies(image: Image) -> None:
    covered = {*image.files, *(f"requirements/{lock}.lock" for lock in image.locks)}
    assert set(copied(image)) == covered


@pytest.mark.parametrize("image", IMAGES.values(), ids=IMAGES)
def test_the_build_context_holds_all_that_a_dockerfile_copies(image: Image) -> None:
    allowed = {line[1:] for line in (REPO / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert [path for path in copied(image) if path not in allowed and path.split("/")[0] not in allowed] == []


def test_trainer_and_rollout_images_share_the_training_stack() -> None:
    def stack(dockerfile: str) -> str:
        return re.split(r"FROM \${BASE} AS \w+\n", (REPO / dockerfile).read_text())[1].split("\n\n")[0]

    assert stack("trainer_image/Dockerfile") == stack("rollout_image/Dockerfile")


def test_locks_pin_one_version_of_a_package_wherever_it_is() -> None:
    pinned: dict[str, set[str]] = {}
    for lock in ("dev", "rollout"):
        for pin in wheelhouse.pins(wheelhouse.REQUIREMENTS / f"{lock}.lock"):
            name, version = pin.split("==")
            pinned.setdefault(name, set()).add(version)
    assert {name: versions for name, versions in pinned.items() if len(versions) > 1} == {}


def test_a_digest_sees_contents_names_and_executable_bits(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    seen = {digest([tmp_path])}
    (tmp_path / "a").write_text("y")
    seen.add(digest([tmp_path]))
    (tmp_path / "a").rename(tmp_path / "b")
    seen.add(digest([tmp_path]))
    (tmp_path / "b").chmod(0o755)
    seen.add(digest([tmp_path]))
    assert len(seen) == 4
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "b.pyc").write_text("")
    assert digest([tmp_path]) in seen


METADATA = """\
Metadata-Version: 2.1
Name: torch
Version: 9.9.0
Requires-Dist: filelock
Requires-Dist: cuda-toolkit[cudart]==13.0.3; platform_system == "Linux"
Requires-Dist: nvidia-nccl-cu13==2.29.7; platform_system == "Linux"
Requires-Dist: triton==3.7.1

Requires-Dist: nvidia-in-the-description
"""


def test_a_cpu_torch_is_a_wheel_that_pip_installs(tmp_path: Path) -> None:
    wheel = tmp_path / "torch-9.9.0-py3-none-any.whl"
    members = {
        "torch/__init__.py": b"import pathlib; parts = sorted(p.name for p in (pathlib.Path(__file__).parent / 'lib').iterdir())\n",
        "torch/lib/libtorch.so": b"\x7fELF" * 1000,
        "torch-9.9.0.dist-info/METADATA": METADATA.encode(),
        "torch-9.9.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
        archive.writestr(
            "torch-9.9.0.dist-info/RECORD", "".join(f"{n},,\n" for n in [*members, "torch-9.9.0.dist-info/RECORD"])
        )

    made = cputorch._with_libraries(wheel, {"libnccl.so.2": b"stand-in"})

    assert made.name == "torch-9.9.0+cpu-py3-none-any.whl"
    with zipfile.ZipFile(made) as archive:
        assert archive.testzip() is None
        recorded = {
            row[0]: row[1] for row in csv.reader(io.StringIO(archive.read("torch-9.9.0+cpu.dist-info/RECORD").decode()))
        }
        assert set(recorded) == set(archive.namelist())
        right = base64.urlsafe_b64encode(hashlib.sha256(b"stand-in").digest()).rstrip(b"=").decode()
        assert recorded["torch/lib/libnccl.so.2"] == f"sha256={right}"
        head, _, description = archive.read("torch-9.9.0+cpu.dist-info/METADATA").decode().partition("\n\n")
    assert [line for line in head.splitlines() if line.startswith("Requires")] == ["Requires-Dist: filelock"]
    assert "nvidia-in-the-description" in description
    target = tmp_path / "installed"
    install = [sys.executable, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "torch==9.9.0"]
    subprocess.run([*install, "--find-links", tmp_path, "--target", target], check=True)
    listing = [sys.executable, "-c", "import torch; print(torch.parts)"]
    listed = subprocess.run(listing, env={"PYTHONPATH": str(target)}, check=True, capture_output=True, text=True)
    assert listed.stdout == "['libnccl.so.2', 'libtorch.so']\n"


def test_pruning_a_layout_keeps_named_images_and_drops_the_blobs_of_replaced_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HALO_CACHE", str(tmp_path))
    blobs = layout.folder() / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def blob(data: bytes) -> str:
        name = hashlib.sha256(data).hexdigest()
        (blobs / name).write_bytes(data)
        return f"sha256:{name}"

    shared, old, new = blob(b"stack"), blob(b"old code"), blob(b"new code")
    entries = []
    for code, annotations in ((old, {}), (new, {layout.REF: "localhost/halo-x:dev"})):
        content = {"config": {"digest": blob(b"{}")}, "layers": [{"digest": shared}, {"digest": code}]}
        entries.append({"digest": blob(json.dumps(content).encode()), "annotations": annotations})
    (layout.folder() / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": entries}))

    layout.prune()

    assert layout.manifest("localhost/halo-x:dev") == entries[1]["digest"]
    left = {f"sha256:{file.name}" for file in blobs.iterdir()}
    assert {shared, new, entries[1]["digest"]} <= left
    assert not {old, entries[0]["digest"]} & left
