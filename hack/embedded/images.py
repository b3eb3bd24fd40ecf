"""Images from where they were built into the local cluster's containerd: only the blobs that it lacks, uncompressed.

Layers are gathered in an OCI folder: compressing gigabytes only to decompress them would be most of the time. containerd
then takes them by hard link, so that they are neither copied nor stored twice.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from .containerd import Containerd
from .settings import Home, Problem, write

REF_NAME = "org.opencontainers.image.ref.name"


def full_name(reference: str) -> str:
    """The name that a pod's `image:` is looked up by: registry and tag spelled out, as Kubernetes does it."""
    name, colon, tag = reference.rpartition(":")
    if not colon or "/" in tag:
        name, tag = reference, "latest"
    first, slash, _ = name.partition("/")
    if not slash:
        name = f"docker.io/library/{name}"
    elif first != "localhost" and not {".", ":"} & set(first):
        name = f"docker.io/{name}"
    return f"{name}:{tag}"


def source_of(reference: str) -> str:
    """Where the image was built, as skopeo names it: buildah's storage, else docker's."""
    if _succeeds("buildah", "inspect", "--type", "image", reference):
        return f"containers-storage:{reference}"
    if _succeeds("docker", "image", "inspect", reference):
        tagged = ":" in reference.rpartition("/")[2]
        return f"docker-daemon:{reference}" if tagged else f"docker-daemon:{reference}:latest"
    raise Problem(f"Neither buildah nor docker has an image {reference}: build it first, e.g. with hack/images build.")


def load_image(home: Home, reference: str) -> str:
    """Hand an image of buildah's or docker's storage to containerd; what was done, in a few words."""
    began = time.monotonic()
    name, source = full_name(reference), source_of(reference)
    runtime, folder = Containerd(home), Folder(home.root / "oci")
    folder.gather(source, name)
    done = _hand_over(runtime, folder, name)
    folder.prune()
    return f"{name} {done} in {time.monotonic() - began:.1f} s"


def load_image_of_layout(home: Home, layout: Path, reference: str) -> str:
    """Hand an image of somebody else's OCI layout to containerd, and leave the layout as it is."""
    began = time.monotonic()
    name = full_name(reference)
    done = _hand_over(Containerd(home), Folder(layout), name)
    return f"{name} {done} in {time.monotonic() - began:.1f} s"


def _hand_over(runtime: Containerd, folder: Folder, name: str) -> str:
    try:
        manifest, blobs = folder.image(name)
        if runtime.images().get(name) == manifest["digest"] and runtime.blobs() >= blobs.keys():
            return "is there already"
        sent = runtime.load(name, manifest, blobs)
    except FileNotFoundError as error:
        raise Problem(f"{error.filename} went away while {name} was loaded: another build runs, try again.") from None
    _forget_replaced(runtime)
    return f"loaded ({sent / 1e6:,.1f} MB that it lacked)"


class Folder:
    """An OCI image layout on disk, with one named entry an image."""

    def __init__(self, path: Path):
        self.path = path

    def gather(self, source: str, name: str) -> None:
        self.path.mkdir(parents=True, exist_ok=True)
        target = f"oci:{self.path}:{name}"
        command = ["skopeo", "copy", "--quiet", "--dest-oci-accept-uncompressed-layers", source, target]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise Problem(f"skopeo could not read {source}: {done.stderr.strip()[-300:]}.")

    def image(self, name: str) -> tuple[dict[str, Any], dict[str, Path | bytes]]:
        """The image's manifest entry, and the file of each of its blobs."""
        entries: list[dict[str, Any]] = self._index()["manifests"]
        named = [entry for entry in entries if entry.get("annotations", {}).get(REF_NAME) == name]
        if not named:
            raise Problem(f"{self.path} has no image {name}: build it first, e.g. with hack/images build.")
        # The last, because one that was replaced may still be listed.
        entry = named[-1]
        return entry, {digest: self._blob(digest) for digest in self._reach(entry)}

    def prune(self) -> None:
        """Forget replaced images: a retagged one leaves an entry without a name, and its blobs."""
        index = self._index()
        named = [entry for entry in index["manifests"] if entry.get("annotations", {}).get(REF_NAME)]
        if named != index["manifests"]:
            write(self.path / "index.json", json.dumps({**index, "manifests": named}))
        needed = {digest for entry in named for digest in self._reach(entry)}
        there = {f"sha256:{blob.name}" for blob in (self.path / "blobs" / "sha256").iterdir()}
        for digest in there - needed:
            self._blob(digest).unlink(missing_ok=True)

    def _index(self) -> dict[str, Any]:
        file = self.path / "index.json"
        index: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"manifests": []}
        return index

    def _blob(self, digest: str) -> Path:
        return self.path / "blobs" / digest.replace(":", "/")

    def _reach(self, entry: dict[str, Any]) -> list[str]:
        manifest = json.loads(self._blob(entry["digest"]).read_text())
        return [*(layer["digest"] for layer in manifest["layers"]), manifest["config"]["digest"], entry["digest"]]


def _forget_replaced(runtime: Containerd) -> None:
    """The kubelet's view of an image (named by its id) outlives the name that was moved on, and holds its layers."""
    images = runtime.images()
    named = {digest for name, digest in images.items() if not name.startswith("sha256:")}
    runtime.remove_images(name for name, digest in images.items() if digest not in named)


def _succeeds(*command: str) -> bool:
    return shutil.which(command[0]) is not None and subprocess.run(command, capture_output=True).returncode == 0
