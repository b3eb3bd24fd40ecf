"""The Go programs, built once from pinned modules into a cache outside the checkout, each under a key of its inputs.

A clean clone of the same pins finds the same key, so that it builds nothing. A build is made beside its place and
renamed into it: what is there is whole.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .settings import HACK, Problem, cache_root

KUBERNETES = "1.34.4"
HELM = "3.19.0"
KWOK = "0.7.0"
GO_AT_LEAST = (1, 25)


@dataclass(frozen=True)
class Program:
    """One `go build`: the module's directory, the package in it, linker variables and the names it is called by."""

    name: str
    module: str
    package: str
    variables: tuple[str, ...] = ()
    called: tuple[str, ...] = ()
    takes: str = "a minute"
    disk_gib: int = 2

    @property
    def flags(self) -> list[str]:
        linker = " ".join(["-s", "-w", *(f"-X {variable}" for variable in self.variables)])
        return ["-trimpath", "-ldflags", linker]

    @property
    def key(self) -> str:
        inputs = hashlib.sha256()
        module = HACK / self.module
        sources = sorted((module / self.package).glob("*.go")) if self.package.startswith(".") else []
        files = [module / "go.mod", module / "go.sum", *sources]
        for file in files:
            inputs.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
        inputs.update("\0".join([self.package, *self.flags, *self.called, platform.machine()]).encode())
        return inputs.hexdigest()[:12]

    @property
    def directory(self) -> Path:
        return cache_root() / "bin" / f"{self.name}-{self.key}"


def _kubernetes_version(component_base: str) -> tuple[str, ...]:
    major, minor, _ = KUBERNETES.split(".")
    return (
        f"{component_base}.gitVersion=v{KUBERNETES}",
        f"{component_base}.gitMajor={major}",
        f"{component_base}.gitMinor={minor}",
    )


KUBE = Program(
    name="kube",
    module="kube",
    package=".",
    variables=_kubernetes_version("k8s.io/component-base/version"),
    called=(
        "etcd",
        "kube-apiserver",
        "kube-controller-manager",
        "kube-scheduler",
        "kubelet",
        "kube-proxy",
        "kubectl",
    ),
    takes="8 to 15 minutes on two cores",
    disk_gib=8,
)
PAUSE = Program(name="pause", module="kube", package="./pause", takes="a few seconds", disk_gib=1)
COREDNS = Program(name="coredns", module="coredns", package=".", takes="1 to 3 minutes")
HELM_CLI = Program(
    name="helm",
    module="helm",
    package="helm.sh/helm/v3/cmd/helm",
    variables=(
        f"helm.sh/helm/v3/internal/version.version=v{HELM}",
        *(
            f"helm.sh/helm/v3/pkg/{package}.k8sVersion{part}={value}"
            for package in ("chartutil", "lint/rules")
            for part, value in zip(("Major", "Minor"), KUBERNETES.split("."), strict=False)
        ),
    ),
    takes="2 to 4 minutes",
)
KWOK_CONTROLLER = Program(
    name="kwok",
    module="kwok",
    package="sigs.k8s.io/kwok/cmd/kwok",
    variables=(f"sigs.k8s.io/kwok/pkg/consts.Version=v{KWOK}",),
    takes="2 to 4 minutes",
)
PROGRAMS = {program.name: program for program in (KUBE, PAUSE, COREDNS, HELM_CLI, KWOK_CONTROLLER)}


def installed(program: Program, say: bool = True) -> Path:
    """The directory of the program, built first where it is missing."""
    directory = program.directory
    if directory.is_dir():
        return directory
    with lock(cache_root() / "bin" / f".{program.name}.lock"):
        if not directory.is_dir():
            _build(program, directory, say)
    return directory


def _build(program: Program, directory: Path, say: bool) -> None:
    go = _go()
    free = shutil.disk_usage(directory.parent).free / 2**30
    if free < program.disk_gib:
        raise Problem(
            f"Building {program.name} needs {program.disk_gib} GiB of free disk and {directory.parent} has {free:.1f}: "
            "free some, or set HALO_CACHE (and GOCACHE, GOMODCACHE) to a larger disk."
        )
    if say:
        print(f"building {program.name} ({program.takes}, once) …", file=sys.stderr, flush=True)
    began = time.monotonic()
    fresh = Path(tempfile.mkdtemp(prefix=f".{program.name}-", dir=directory.parent))
    try:
        # The caller's flags and workspace may not change what a key stands for.
        env = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOWORK": "off"}
        command = [go, "build", *program.flags, "-o", str(fresh / program.name), program.package]
        done = subprocess.run(command, cwd=HACK / program.module, env=env, stdout=sys.stderr)
        if done.returncode:
            raise Problem(f"`go build` in hack/{program.module} failed as printed above: behind a mirror, set GOPROXY.")
        for name in program.called:
            (fresh / name).symlink_to(program.name)
        fresh.chmod(0o755)
        fresh.rename(directory)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    if say:
        print(f"built {program.name} in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def _go() -> str:
    go = shutil.which("go") or shutil.which("/usr/local/go/bin/go")
    wanted = ".".join(map(str, GO_AT_LEAST))
    cure = f"install Go {wanted} or newer from https://go.dev/dl and put it on PATH."
    if go is None:
        raise Problem(f"Go is missing and the cluster's binaries are built with it: {cure}")
    printed = subprocess.run([go, "version"], capture_output=True, text=True).stdout
    version = re.search(r"go(\d+)\.(\d+)", printed)
    if version is None or tuple(map(int, version.groups())) < GO_AT_LEAST:
        raise Problem(f"Go {wanted} is needed and {go} is {printed.strip() or 'broken'}: {cure}")
    return go


def tools() -> Path:
    """One directory to put on PATH: kubectl and helm, and beside them what else is built already."""
    wanted = {"kubectl": installed(KUBE) / "kubectl", "helm": installed(HELM_CLI) / "helm"}
    directory = cache_root() / "bin" / f"tools-{KUBE.key}-{HELM_CLI.key}"
    directory.mkdir(parents=True, exist_ok=True)
    for name, target in wanted.items():
        link = directory / name
        if not link.is_symlink() or link.readlink() != target:
            link.unlink(missing_ok=True)
            link.symlink_to(target)
    return directory


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """One at a time across processes, for as long as the block runs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
