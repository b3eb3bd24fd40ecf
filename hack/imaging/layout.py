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
    return next((m["digest"] for m in _manifests() if m.get("annotations", {}).get(REF) == image), None)


def export(source: str, image: str) -> None:
    """Bring an image from the builder's storage into the layout."""
    run("skopeo", "copy", "-q", "--dest-oci-accept-uncompressed-layers", source, f"oci:{folder()}:{image}")


def prune() -> None:
    """Drop images that lost their name to a newer build, and the blobs that only they used."""
    kept = [m for m in _manifests() if m.get("annotations", {}).get(REF)]
    if len(kept) != len(_manifests()):
        fresh = folder() / ".index.json"
        fresh.write_text(json.dumps({"schemaVersion": 2, "manifests": kept}))
        fresh.rename(folder() / "index.json")
    used = {digest for top in kept for digest in _reachable(top["digest"])}
    for blob in (folder() / "blobs" / "sha256").glob("*"):
        if f"sha256:{blob.name}" not in used:
            blob.unlink()


def _manifests() -> list[dict[str, Any]]:
    file = folder() / "index.json"
    listed: list[dict[str, Any]] = json.loads(file.read_text())["manifests"] if file.exists() else []
    return listed


def _reachable(digest: str) -> list[str]:
    content = json.loads((folder() / "blobs" / digest.replace(":", "/")).read_text())
    return [digest, content["config"]["digest"], *(layer["digest"] for layer in content["layers"])]
