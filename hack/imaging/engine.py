"""The two programs that build images: a Docker engine where one answers, else buildah in a storage folder of its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from .common import REPO, Trouble, answers, cache, need, run


class Docker:
    """Docker has a registry or a mirror and its own layer cache: everything goes as a user's plain `docker build` does."""

    name = "docker"
    needs_wheelhouse = False

    def build(self, dockerfile: Path, tag: str, args: Mapping[str, str], wheels: Path | None = None) -> str:
        flags = [f"--build-arg={name}={value}" for name, value in args.items()]
        run("docker", "build", "-q", "-f", dockerfile, "-t", tag, *flags, REPO)
        return run("docker", "image", "inspect", "--format", "{{.Id}}", tag).strip()

    def source(self, tag: str) -> str:
        return f"docker-daemon:{tag}"

    def prune(self) -> None:
        """Docker's images are the user's: leave them."""


class Buildah:
    """Builds without a daemon; the storage is ours alone, so that pruning it touches nobody's images."""

    name = "buildah"
    needs_wheelhouse = True

    def __init__(self) -> None:
        need(buildah="buildah", skopeo="skopeo")
        self.root, self.runroot = cache("images", "storage"), cache("images", "run")
        self.command = ("buildah", "--root", self.root, "--runroot", self.runroot, "--storage-driver", "overlay")

    def build(self, dockerfile: Path, tag: str, args: Mapping[str, str], wheels: Path | None = None) -> str:
        flags = [f"--build-arg={name}={value}" for name, value in args.items()]
        if wheels:
            flags += [f"--volume={wheels}:/wheels:ro", "--build-arg=PIP_NO_INDEX=1", "--build-arg=PIP_FIND_LINKS=/wheels"]
        self.run("bud", "-q", "--isolation", "chroot", "--layers", "-f", dockerfile, "-t", tag, *flags, REPO)
        return self.image(tag) or ""

    def image(self, tag: str) -> str | None:
        """The id of a tagged image, None when there is none."""
        if not answers(*self.command, "inspect", "--type", "image", tag):
            return None
        return json.loads(self.run("inspect", "--type", "image", tag))["FromImageID"]

    def run(self, *arguments: str | Path) -> str:
        return run(*self.command, *arguments)

    def source(self, tag: str) -> str:
        return f"containers-storage:[overlay@{self.root}+{self.runroot}]{tag}"

    def prune(self) -> None:
        self.run("rmi", "--prune")


def engine(wanted: str | None = None) -> Docker | Buildah:
    """The engine asked for, or the first that works."""
    if wanted == "buildah":
        return Buildah()
    if shutil.which("docker") and answers("docker", "version", "--format", "{{.Server.Version}}"):
        return Docker()
    if wanted == "docker":
        raise Trouble("no Docker engine answers; start it, or leave --engine out to build with buildah")
    return Buildah()
