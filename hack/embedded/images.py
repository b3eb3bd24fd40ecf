"""Images from where they were built into the local cluster's containerd: only the blobs that it lacks, uncompressed.

Layers are gathered in an OCI folder (compressing gigabytes only to decompress them would be most of the time).
A layer that containerd has is then emptied there to a file of the same size that takes no space, which is all that the
next gathering looks at.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from .containerd import Containerd
from .settings import Home, Problem, write

LARGE = 1 << 20
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
    _, blobs = folder.image(name)
    have = runtime.blobs()
    if lost := [digest for digest in blobs if digest not in have and folder.is_hollow(digest)]:
        folder.drop(lost)
        folder.gather(source, name)
    done = _hand_over(runtime, folder, name)
    folder.hollow(blobs)
    folder.prune()
    return f"{name} {done} in {time.monotonic() - began:.1f} s"


def load_image_of_layout(home: Home, layout: Path, reference: str) -> str:
    """Hand an image of somebody else's OCI layout to containerd, and leave the layout as it is."""
    began = time.monotonic()
    name = full_name(reference)
    done = _hand_over(Containerd(home), Folder(layout), name)
    return f"{name} {done} in {time.monotonic() - began:.1f} s"


def _hand_over(runtime: Containerd, folder: Folder, name: str) -> str:
    manifest, blobs = folder.image(name)
    if runtime.images().get(name) == manifest["digest"] and runtime.blobs() >= blobs.keys():
        return "is there already"
    sent = runtime.load(name, manifest, blobs)
    _forget_replaced(runtime)
    return f"loaded ({sent / 1e6:,.1f} MB that it lacked)"


class Folder:
    """An OCI image layout on disk, with one named entry an image."""

    def __init__(self, path: Path):
        self.path = path
        self.hollow_file = path / "hollow.json"
        self.hollowed: set[str] = set(json.loads(self.hollow_file.read_text())) if self.hollow_file.exists() else set()

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

    def is_hollow(self, digest: str) -> bool:
        return digest in self.hollowed

    def hollow(self, digests: dict[str, Path | bytes]) -> None:
        """Give back the space of blobs that containerd has; small ones (manifests are among them) stay whole."""
        for digest in digests:
            blob = self._blob(digest)
            size = blob.stat().st_size
            if size > LARGE and digest not in self.hollowed:
                self.hollowed.add(digest)
                self._keep_hollowed()
                os.truncate(blob, 0)
                os.truncate(blob, size)

    def drop(self, digests: list[str]) -> None:
        for digest in digests:
            self._blob(digest).unlink(missing_ok=True)
        self.hollowed -= set(digests)
        self._keep_hollowed()

    def prune(self) -> None:
        """Forget replaced images: a retagged one leaves an entry without a name, and its blobs."""
        index = self._index()
        named = [entry for entry in index["manifests"] if entry.get("annotations", {}).get(REF_NAME)]
        if named != index["manifests"]:
            write(self.path / "index.json", json.dumps({**index, "manifests": named}))
        needed = {digest for entry in named for digest in self._reach(entry)}
        there = {f"sha256:{blob.name}" for blob in (self.path / "blobs" / "sha256").iterdir()}
        if unneeded := sorted(there - needed):
            self.drop(unneeded)

    def _index(self) -> dict[str, Any]:
        file = self.path / "index.json"
        index: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {"manifests": []}
        return index

    def _blob(self, digest: str) -> Path:
        return self.path / "blobs" / digest.replace(":", "/")

    def _reach(self, entry: dict[str, Any]) -> list[str]:
        manifest = json.loads(self._blob(entry["digest"]).read_text())
        return [*(layer["digest"] for layer in manifest["layers"]), manifest["config"]["digest"], entry["digest"]]

    def _keep_hollowed(self) -> None:
        write(self.hollow_file, json.dumps(sorted(self.hollowed)))


def _forget_replaced(runtime: Containerd) -> None:
    """The kubelet's view of an image (named by its id) outlives the name that was moved on, and holds its layers."""
    images = runtime.images()
    named = {digest for name, digest in images.items() if not name.startswith("sha256:")}
    runtime.remove_images(name for name, digest in images.items() if digest not in named)


def _succeeds(*command: str) -> bool:
    return shutil.which(command[0]) is not None and subprocess.run(command, capture_output=True).returncode == 0
