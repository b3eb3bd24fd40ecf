"""What our images are made of, and how to bring them up to date with as little work as possible."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from . import base, wheelhouse
from .common import REPO, Trouble, cache, digest, free_space, locked, remove, say
from .engine import Buildah, Docker


@dataclass(frozen=True)
class Image:
    """One of our images: everything that its bytes depend on."""

    name: str
    dockerfile: str
    locks: tuple[str, ...]
    files: tuple[str, ...]
    gigabytes: float

    @property
    def tag(self) -> str:
        return f"localhost/halo-{self.name}:dev"

    def key(self, *more: str) -> str:
        files = [self.dockerfile, ".dockerignore", *(f"requirements/{lock}.lock" for lock in self.locks), *self.files]
        missing = [file for file in files if not (REPO / file).exists()]
        if missing:
            raise Trouble(f"the {self.name} image needs {' and '.join(missing)}, which this checkout lacks; update it")
        return digest([*more, *(REPO / file for file in files)])


TRAINER_CODE = ("operator/halo_api", "supervisor/halo_supervisor", "trainer_image/halo_trainer")
ROLLOUT_FILES = (*TRAINER_CODE, "rollout_image/halo_rollout", "requirements/rollout-cuda.lock")
IMAGES = {
    image.name: image
    for image in (
        Image("operator", "operator/Dockerfile", ("operator",), ("operator/halo_api", "operator/halo_operator"), 3),
        Image("trainer", "trainer_image/Dockerfile", ("trainer",), TRAINER_CODE, 12),
        Image("rollout", "rollout_image/Dockerfile", ("trainer", "rollout"), ROLLOUT_FILES, 8),
    )
}


def build(names: list[str], engine: Docker | Buildah) -> list[str]:
    """Bring the named images up to date and ready for the cluster; return their tags."""
    with locked("images"):
        record = Record(cache("images") / "built.json", engine)
        stale = {}
        for name in names:
            key = IMAGES[name].key(engine.name, _settings())
            if record.key(IMAGES[name].tag) != key:
                stale[name] = key
        if stale:
            _build(stale, engine, record)
    return [IMAGES[name].tag for name in names]


def _build(stale: dict[str, str], engine: Docker | Buildah, record: Record) -> None:
    args = {"TORCH_INDEX": index} if (index := os.environ.get("HALO_TORCH_INDEX")) else {}
    wheels = None
    if isinstance(engine, Buildah):
        args["BASE"] = base.image(engine)
        wheels = wheelhouse.fill(*sorted({lock for name in stale for lock in IMAGES[name].locks}))
    for name, key in stale.items():
        image = IMAGES[name]
        if engine.made(image.tag) is None:
            free_space(cache("images"), image.gigabytes, f"the {name} image")
        say(f"build {image.tag} with {engine.name}")
        dockerfile = REPO / image.dockerfile
        declared = {arg: value for arg, value in args.items() if f"ARG {arg}" in dockerfile.read_text()}
        engine.build(dockerfile, image.tag, declared, wheels)
        record.keep(image.tag, key)
    engine.prune()


def _settings() -> str:
    return json.dumps([os.environ.get(name) for name in ("HALO_TORCH_INDEX", "HALO_BASE_IMAGE")])


class Record:
    """Which state of the sources each ready image was made from."""

    def __init__(self, file: Path, engine: Docker | Buildah) -> None:
        self.file, self.engine = file, engine
        self.rows: dict[str, dict[str, str]] = json.loads(file.read_text()) if file.exists() else {}

    def key(self, tag: str) -> str | None:
        row = self.rows.get(tag)
        return row["key"] if row and self.engine.made(tag) == row["made"] else None

    def keep(self, tag: str, key: str) -> None:
        self.rows[tag] = {"key": key, "made": self.engine.made(tag) or ""}
        fresh = self.file.with_suffix(".new")
        fresh.write_text(json.dumps(self.rows, indent=2))
        fresh.rename(self.file)


def clean() -> None:
    """Remove everything that image builds left in the cache, the wheelhouse excepted."""
    with locked("images"):
        remove(cache("images"))
