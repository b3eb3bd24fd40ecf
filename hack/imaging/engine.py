"""The two programs that build images: a Docker engine where one answers, else buildah in a storage folder of its own."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from . import layout
from .common import REPO, Trouble, answers, cache, need, run, say


class Docker:
    """Docker has a registry or a mirror and its own layer cache: everything goes as a user's plain `docker build` does."""

    name = "docker"

    def build(self, dockerfile: Path, tag: str, args: Mapping[str, str], wheels: Path | None = None) -> None:
        flags = [f"--build-arg={name}={value}" for name, value in args.items()]
        run("docker", "build", "-q", "-f", dockerfile, "-t", tag, *flags, REPO)

    def made(self, tag: str) -> str | None:
        """The id of a tagged image that is ready for the cluster, None when there is none."""
        inspect = ("docker", "image", "inspect", "--format", "{{.Id}}", tag)
        return run(*inspect).strip() if answers(*inspect) else None

    def load_options(self) -> list[str | Path]:
        return []

    def prune(self) -> None:
        """Docker's images are the user's: leave them."""


class Buildah:
    """Builds without a daemon; the storage is ours alone, so that pruning it touches nobody's images."""

    name = "buildah"

    def __init__(self) -> None:
        need(buildah="buildah", skopeo="skopeo")
        self.root, self.runroot = cache("images", "storage"), cache("images", "run")
        self.command = ("buildah", "--root", self.root, "--runroot", self.runroot, "--storage-driver", "overlay")

    def build(self, dockerfile: Path, tag: str, args: Mapping[str, str], wheels: Path | None = None) -> None:
        """Build the image and bring it into the OCI layout that the cluster takes it from."""
        flags = [f"--build-arg={name}={value}" for name, value in args.items()]
        if wheels:
            pip = ("PIP_NO_INDEX=1", "PIP_FIND_LINKS=/wheels")
            flags += [f"--volume={wheels}:/wheels:ro", *(f"--build-arg={setting}" for setting in pip)]
        self.run("bud", "-q", "--isolation", "chroot", "--layers", "-f", dockerfile, "-t", tag, *flags, REPO)
        say(f"export {tag}")
        layout.export(f"containers-storage:[overlay@{self.root}+{self.runroot}]{tag}", tag)

    def made(self, tag: str) -> str | None:
        """The digest of a named image that is ready for the cluster, None when there is none."""
        return layout.manifest(tag)

    def load_options(self) -> list[str | Path]:
        return ["--oci", layout.folder()]

    def has(self, tag: str) -> bool:
        return answers(*self.command, "inspect", "--type", "image", tag)

    def run(self, *arguments: str | Path) -> str:
        return run(*self.command, *arguments)

    def prune(self) -> None:
        """Remove what interrupted builds and replaced images left."""
        self.run("rm", "--all")
        self.run("rmi", "--prune")
        layout.prune()


def engine(wanted: str | None = None) -> Docker | Buildah:
    """The engine asked for, or the first that works."""
    if wanted == "buildah":
        return Buildah()
    if shutil.which("docker") and answers("docker", "version", "--format", "{{.Server.Version}}"):
        return Docker()
    if wanted == "docker":
        raise Trouble("no Docker engine answers; start it, or leave --engine out to build with buildah")
    return Buildah()
