"""The OCI layout in which built images wait for the cluster.

Layers lie there uncompressed: compressing the 2 GB of the training stack takes minutes and nobody downloads it. Known layers keep
their digest, so an image of which only our own code changed costs a second.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .common import cache, run

REF = "org.opencontainers.image.ref.name"


def folder() -> Path:
    return cache("images", "oci")


def manifest(image: str) -> str | None:
    """The digest of a named image's manifest."""
    return next((m["digest"] for m in _index().get("manifests", []) if m.get("annotations", {}).get(REF) == image), None)


def export(source: str, image: str) -> str:
    """Bring an image from the engine's storage into the layout; return its manifest's digest."""
    run("skopeo", "copy", "-q", "--dest-oci-accept-uncompressed-layers", source, f"oci:{folder()}:{image}")
    digest = manifest(image)
    assert digest is not None
    return digest


def prune() -> None:
    """Drop images that lost their name to a newer build, and the blobs that only they used."""
    index = _index()
    kept = [m for m in index.get("manifests", []) if m.get("annotations", {}).get(REF)]
    if len(kept) != len(index.get("manifests", [])):
        fresh = folder() / ".index.json"
        fresh.write_text(json.dumps({**index, "manifests": kept}))
        fresh.rename(folder() / "index.json")
    used = {digest for top in kept for digest in _reachable(top["digest"])}
    for blob in (folder() / "blobs" / "sha256").glob("*"):
        if f"sha256:{blob.name}" not in used:
            blob.unlink()


def _index() -> dict[str, Any]:
    file = folder() / "index.json"
    return json.loads(file.read_text()) if file.exists() else {}


def _reachable(digest: str) -> list[str]:
    content = json.loads((folder() / "blobs" / digest.replace(":", "/")).read_text())
    return [digest, content["config"]["digest"], *(layer["digest"] for layer in content["layers"])]
