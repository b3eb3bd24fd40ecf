"""The cluster's own containerd: its configuration, the sandbox image, and images handed to it blob by blob."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import subprocess
import tarfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from .processes import Process
from .settings import Home, Problem, write

PAUSE_IMAGE = "localhost/halo-pause:1"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
WORTH_LINKING = 1 << 20
MANIFEST_TYPE = "application/vnd.oci.image.manifest.v1+json"


def process(home: Home, plugins: Path) -> Process:
    configuration = f"""\
version = 2
root = "{home.root}/containerd"
state = "{home.run}/containerd"
[grpc]
  address = "{home.containerd_socket}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{home.root}/containerd/opt"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  # A root without CAP_SYS_RESOURCE may not lower oom_score_adj, and every sandbox would die of trying.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      Root = "{home.run}/runc"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{home.root}/cni"
"""
    home.run.mkdir(mode=0o711, parents=True, exist_ok=True)
    file = write(home.root / "containerd.toml", configuration)
    return Process("containerd", ("containerd", "--config", str(file)), files=(file,), uses_proxy=True)


class Containerd:
    """What the tool asks of containerd, in the namespace where the kubelet's things are."""

    def __init__(self, home: Home):
        self.command = ("ctr", "--address", str(home.containerd_socket), "--namespace", "k8s.io")
        self.content = home.root / "containerd" / "io.containerd.content.v1.content" / "blobs"

    def _list(self, *arguments: str) -> list[str]:
        done = subprocess.run([*self.command, *arguments], capture_output=True, text=True)
        return done.stdout.split() if done.returncode == 0 else []

    def answers(self) -> bool:
        return subprocess.run([*self.command, "version"], capture_output=True).returncode == 0

    def tasks(self) -> list[str]:
        return self._list("tasks", "list", "--quiet")

    def blobs(self) -> set[str]:
        return set(self._list("content", "list", "--quiet"))

    def images(self) -> dict[str, str]:
        """Each image's name and the digest that it stands for."""
        done = subprocess.run([*self.command, "images", "list"], capture_output=True, text=True)
        rows = [line.split() for line in done.stdout.splitlines()[1:]]
        return {row[0]: row[2] for row in rows if len(row) > 2}

    def remove_images(self, names: Iterable[str]) -> None:
        if names := list(names):
            subprocess.run([*self.command, "images", "remove", *names], capture_output=True)

    def forget_containers(self) -> None:
        """Remove what is left of ended pods, so that their file systems do not pile up."""
        if containers := self._list("containers", "list", "--quiet"):
            subprocess.run([*self.command, "containers", "remove", *containers], capture_output=True)

    def ensure_pause_image(self, binary: Path) -> None:
        if PAUSE_IMAGE not in self._list("images", "list", "--quiet"):
            self.load(PAUSE_IMAGE, *_one_file_image(binary))

    def load(self, image: str, manifest: dict[str, Any], blobs: dict[str, Path | bytes]) -> int:
        """Import an image of which containerd may have some blobs already; the bytes that it lacked."""
        have = self.blobs()
        lacking = {digest: blob for digest, blob in blobs.items() if digest not in have}
        named = {
            "io.containerd.image.name": image,
            "org.opencontainers.image.ref.name": image.rpartition(":")[2],
        }
        described = {**manifest, "annotations": named}
        streamed = {digest: blob for digest, blob in lacking.items() if not self._takes_link(digest, blob)}
        if self._import(described, streamed) is not None:
            # What is linked belongs to no image until the import, and may have been collected as garbage before it.
            complaint = self._import(described, lacking)
            if complaint is not None:
                raise Problem(f"containerd refused {image} ({complaint[-300:]}): see whether the disk is full.")
        return sum(len(blob) if isinstance(blob, bytes) else blob.stat().st_size for blob in lacking.values())

    def _takes_link(self, digest: str, blob: Path | bytes) -> bool:
        """Put a large file into containerd's store by link and have it registered, which it does without reading it.

        Nothing is taken on trust: unpacking a layer checks its digest.
        """
        if isinstance(blob, bytes) or (size := blob.stat().st_size) < WORTH_LINKING:
            return False
        place = self.content / digest.replace(":", "/")
        try:
            place.hardlink_to(blob)
        except FileExistsError:
            pass
        except FileNotFoundError:
            raise
        except OSError:
            return False
        expected = ("--expected-digest", digest, "--expected-size", str(size))
        with blob.open("rb") as content:
            command = [*self.command, "content", "ingest", *expected, f"halo-{digest}"]
            return subprocess.run(command, stdin=content, capture_output=True).returncode == 0

    def _import(self, manifest: dict[str, Any], blobs: dict[str, Path | bytes]) -> str | None:
        """Stream an image layout to containerd; its complaint, or None if it is content."""
        command = [*self.command, "images", "import", "-"]
        pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
        with subprocess.Popen(command, stdin=pipe, stdout=nowhere, stderr=pipe) as importing:
            assert importing.stdin is not None
            assert importing.stderr is not None
            # It may have given up before it has read all; its own words then tell more than the broken pipe.
            with suppress(BrokenPipeError):
                _write_layout(importing.stdin, manifest, blobs)
                importing.stdin.close()
            complaint = importing.stderr.read().decode(errors="replace").strip()
        return (complaint or "no reason given") if importing.returncode else None


def _write_layout(output: IO[bytes], manifest: dict[str, Any], blobs: dict[str, Path | bytes]) -> None:
    """An OCI image layout as a tar stream."""
    with tarfile.open(fileobj=output, mode="w|") as archive:

        def add(name: str, data: bytes) -> None:
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))

        add("oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        add("index.json", json.dumps({"schemaVersion": 2, "manifests": [manifest]}).encode())
        for digest, blob in blobs.items():
            name = f"blobs/{digest.replace(':', '/')}"
            if isinstance(blob, bytes):
                add(name, blob)
            else:
                archive.add(blob, name)


def _one_file_image(binary: Path) -> tuple[dict[str, Any], dict[str, Path | bytes]]:
    """The image of one static binary, put together here so that it needs no image builder."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as archive:
        entry = tarfile.TarInfo(binary.name)
        entry.size, entry.mode = binary.stat().st_size, 0o755
        with binary.open("rb") as content:
            archive.addfile(entry, content)
    blobs: dict[str, Path | bytes] = {}

    def described(media_type: str, data: bytes) -> dict[str, Any]:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        blobs[digest] = data
        return {"mediaType": media_type, "digest": digest, "size": len(data)}

    layer_blob = described("application/vnd.oci.image.layer.v1.tar", layer.getvalue())
    config = {
        "architecture": ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Entrypoint": [f"/{binary.name}"], "User": "65535:65535"},
        "rootfs": {"type": "layers", "diff_ids": [layer_blob["digest"]]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST_TYPE,
        "config": described("application/vnd.oci.image.config.v1+json", json.dumps(config).encode()),
        "layers": [layer_blob],
    }
    return described(MANIFEST_TYPE, json.dumps(manifest).encode()), blobs
