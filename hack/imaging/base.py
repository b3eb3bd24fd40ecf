"""The image that ours start from when buildah builds: python:3.11-slim where a registry is reached, else a Debian of the same Python."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from .common import Trouble, answers, cache, free_space, need, remove, run, say
from .engine import Buildah

PUBLIC = "python:3.11-slim"
# The Debian release whose Python is 3.11. libnuma1 is for vLLM's CPU build.
RELEASE, PACKAGES = "bookworm", ("python3", "python3-venv", "ca-certificates", "libnuma1")
LOCAL = f"localhost/halo-base:{RELEASE}-1"


def image(buildah: Buildah) -> str:
    """The name of a base image that is in buildah's storage."""
    if chosen := os.environ.get("HALO_BASE_IMAGE"):
        return chosen
    for known in (PUBLIC, LOCAL):
        if buildah.has(known):
            return known
    if answers(*buildah.command, "pull", "-q", PUBLIC):
        return PUBLIC
    _bootstrap(buildah)
    return LOCAL


def _bootstrap(buildah: Buildah) -> None:
    free_space(cache("images"), 3, "the base image")
    need(debootstrap="debootstrap")
    for unfinished in cache("images").glob(".base-*"):
        remove(unfinished)
    say(f"no image registry answers: make the base image from Debian {RELEASE}")
    with tempfile.TemporaryDirectory(dir=cache("images"), prefix=".base-") as scratch:
        root = Path(scratch) / "root"
        include = ",".join(PACKAGES)
        run("debootstrap", "--variant=minbase", f"--include={include}", RELEASE, root, _mirror())
        for waste in ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale"):
            shutil.rmtree(root / waste, ignore_errors=True)
        (Path(scratch) / "Dockerfile").write_text("FROM scratch\nCOPY root /\n")
        buildah.run("bud", "-q", "-f", Path(scratch) / "Dockerfile", "-t", LOCAL, scratch)


def _mirror() -> str:
    """The Debian mirror that this machine's own apt uses for the release."""
    query = ("apt-get", "indextargets", "--format", "$(CODENAME) $(REPO_URI)", "Created-By: Packages")
    listed = run(*query) if shutil.which("apt-get") else ""
    for line in listed.splitlines():
        codename, _, uri = line.partition(" ")
        if codename == RELEASE:
            return uri
    raise Trouble(
        f"neither an image registry ({PUBLIC}) nor a Debian {RELEASE} mirror is in reach; "
        f"set HALO_BASE_IMAGE to a base image with Python 3.11"
    )
