"""What a LoRA from outside must be to become an Adapter: PEFT's folder, with its weights in safetensors and nothing that runs."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from halo_api.adapter import CONFIG, FILE_PATH, WEIGHTS, AdapterFile
from halo_api.base import ApiModel
from halo_api.file_stream import MAX_BYTES, MAX_FILES
from halo_api.receipt import RECEIPT_NAME

CONFIG_BYTES = 1 << 20
# How much of the weights is read for their names and shapes; 30,000 tensors take 5 MB.
HEADER_BYTES = 32 << 20
# More names than that are no adapter's; the walk must end.
MAX_NAMES = 10_000
# What belongs to an adapter beside its weights. A pickle runs code when it is loaded, whatever it is called.
SUFFIXES = (".safetensors", ".json", ".jinja", ".md", ".model", ".txt")
NAMES = ("LICENSE", "NOTICE")
# What pulling an adapter writes beside its files: of the adapter that is imported it says nothing.
PULLED = (RECEIPT_NAME, "public.pem")
TO_RANK = re.compile(r"\.lora_(embedding_)?A(\.|$)")


class Misfit(ValueError):
    """What keeps a folder from being imported: where, what was found, and what would do."""


class Weights(ApiModel):
    """What the header of the weights says."""

    tensors: int
    ranks: list[int]


class Folder(ApiModel):
    """A folder that was looked at."""

    files: list[AdapterFile]
    config: dict[str, Any]
    weights: Weights
    left_out: list[str]


@dataclass(frozen=True)
class Lora:
    """What a folder says of itself."""

    rank: int
    alpha: float
    base: str | None
    revision: str | None


def looked_at(folder: Path, is_file: Callable[[Path], bool] = Path.is_file) -> Folder:
    """Return what is in a folder; raises Misfit for what is no LoRA's, and OSError where it can't be read."""
    kept, left_out = choose(names_in(folder))
    files = []
    for name in kept:
        if not is_file(folder / name):
            raise Misfit(
                f"{name}: found what is no file of it, or a link that leads out of it; import a folder of files"
            )
        with (folder / name).open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            files.append(AdapterFile(path=name, sha256=f"sha256:{digest}", size=file.tell()))
    with (folder / CONFIG).open("rb") as file:
        config = config_of(file.read(CONFIG_BYTES + 1))
    with (folder / WEIGHTS).open("rb") as file:
        weights = weights_of(file.read(HEADER_BYTES), (folder / WEIGHTS).stat().st_size)
    return Folder(files=files, config=config, weights=weights, left_out=left_out)


def names_in(folder: Path) -> list[str]:
    """Return the paths of all files below a folder; a link to a folder counts as one."""
    files = (path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    found = [path.relative_to(folder).as_posix() for path in itertools.islice(files, MAX_NAMES + 1)]
    if len(found) > MAX_NAMES:
        raise Misfit(f"found more than {MAX_NAMES} files; name the folder of one adapter")
    return found


def choose(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the paths of a folder that are an adapter's, and those left out: hidden ones, and what pulling one adds."""
    left_out = [name for name in names if any(part.startswith(".") for part in name.split("/")) or name in PULLED]
    kept = sorted(set(names) - set(left_out))
    if CONFIG not in kept:
        raise Misfit(f"{CONFIG}: found none; name the folder of one PEFT adapter")
    if WEIGHTS not in kept:
        pickled = "adapter_model.bin" in kept
        would_do = (
            "load it with PEFT, and save_pretrained(FOLDER) writes safetensors" if pickled else "it has the weights"
        )
        raise Misfit(f"{WEIGHTS}: found {'adapter_model.bin, a pickle' if pickled else 'none'}; {would_do}")
    for name in kept:
        if not name.endswith(SUFFIXES) and name not in NAMES:
            raise Misfit(
                f"{name}: found what is no part of an adapter ({', '.join(SUFFIXES)} are; a pickle would run code when it "
                "is loaded); import a folder without it"
            )
        if not re.fullmatch(FILE_PATH, name) or len(name) > 256:
            raise Misfit(
                f"{name!r}: found a name that no Adapter can have; use letters, digits, ., _ and -, at most 256"
            )
    if len(kept) > MAX_FILES:
        raise Misfit(f"found {len(kept)} files; an Adapter has at most {MAX_FILES}")
    return kept, left_out


def config_of(text: bytes) -> dict[str, Any]:
    """Return what adapter_config.json says."""
    try:
        found = json.loads(text) if len(text) <= CONFIG_BYTES else None
    except ValueError as error:
        raise Misfit(f"{CONFIG}: found no JSON: {error}") from None
    if not isinstance(found, dict):
        raise Misfit(
            f"{CONFIG}: found no JSON object of at most {CONFIG_BYTES} bytes; PEFT's save_pretrained writes it"
        )
    return found


def weights_of(head: bytes, size: int) -> Weights:
    """Return what the first bytes of a safetensors file say of it; every tensor must lie within the file."""
    length = int.from_bytes(head[:8], "little")
    try:
        if len(head) < 8 or length > len(head) - 8:
            raise ValueError(f"a header of {length} bytes in {size}")
        header = json.loads(head[8 : 8 + length])
        tensors = {name: tensor for name, tensor in header.items() if name != "__metadata__"}
        ends = [tensor["data_offsets"][1] for tensor in tensors.values()]
        ranks = {int(tensor["shape"][0]) for name, tensor in tensors.items() if TO_RANK.search(name)}
        if max(ends, default=0) != size - 8 - length:
            raise ValueError(f"tensors of {max(ends, default=0)} bytes in a file with {size - 8 - length} for them")
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise Misfit(f"{WEIGHTS}: found no whole safetensors file ({error}); copy it again") from None
    if not ranks:
        raise Misfit(
            f"{WEIGHTS}: found no tensor of a LoRA (lora_A) among {len(tensors)}; only LoRA adapters are imported"
        )
    return Weights(tensors=len(tensors), ranks=sorted(ranks))


def lora_of(folder: Folder) -> Lora:
    """Return what a folder says of itself, if configuration and weights agree."""
    config = folder.config
    if config.get("peft_type") != "LORA":
        raise Misfit(f"{CONFIG}.peft_type: found {config.get('peft_type')!r}; only 'LORA' is imported")
    rank, alpha = config.get("r"), config.get("lora_alpha")
    if not isinstance(rank, int) or isinstance(rank, bool) or not 1 <= rank <= 256:
        raise Misfit(f"{CONFIG}.r: found {rank!r}; an Adapter's rank is a whole number from 1 to 256")
    if not isinstance(alpha, int | float) or isinstance(alpha, bool) or not 0 < alpha <= 4096:
        raise Misfit(f"{CONFIG}.lora_alpha: found {alpha!r}; an Adapter's alpha is above 0, at most 4096")
    pattern = config.get("rank_pattern") or {}
    said = {rank, *(pattern.values() if isinstance(pattern, Mapping) else ())}
    if others := [found for found in folder.weights.ranks if found not in said]:
        raise Misfit(
            f"{WEIGHTS}: found tensors of rank {others[0]}, and {CONFIG}.r is {rank}; they are of two adapters"
        )
    if (total := sum(file.size for file in folder.files)) > MAX_BYTES:
        raise Misfit(f"found {total} bytes in all; an Adapter has at most {MAX_BYTES}")
    return Lora(rank, float(alpha), _text(config, "base_model_name_or_path"), _text(config, "revision"))


def _text(config: Mapping[str, Any], key: str) -> str | None:
    found = config.get(key)
    return found if isinstance(found, str) and found else None
