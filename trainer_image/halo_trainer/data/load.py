"""Reading the data of a run: checked, tokenised, of legal length."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar

from halo_api.conditions import Reason
from halo_api.run_file import BaseRef, DataRef, volume_path
from halo_trainer.data.jsonl import JsonLines, file_digest
from halo_trainer.data.preference import PreferenceRow, TokenPair, preference_row, token_pair
from halo_trainer.data.rows import ChatRow
from halo_trainer.data.steps import ChatLines
from halo_trainer.data.template import Template, TokenRow
from halo_trainer.failures import RunFailure, first_line

Row = TypeVar("Row", TokenRow, TokenPair)
LONGEST_CONTEXT = 1 << 24


def base_folder(base: BaseRef, path: Path) -> Path:
    """Return the base's folder, if there is a model in it."""
    if not (path / "config.json").is_file():
        found = "has no config.json" if path.is_dir() else "is not there"
        raise RunFailure(
            Reason.BASE_MISSING,
            f"base {base.name}: {path} {found}; put the model's files there, or mend the BaseModel's spec.source",
        )
    return path


def local_path(name: str, volumes: str) -> str:
    """Return where a file or folder lies that is named by its path or as pvc://CLAIM/PATH."""
    return volume_path(name, volumes) if name.startswith("pvc://") else name


def local_base(name: str, volumes: str, dtype: Literal["bf16", "fp32"] = "fp32") -> tuple[BaseRef, Path]:
    """Return a base that no catalog describes, and its folder."""
    path = Path(local_path(name, volumes))
    base = BaseRef(
        name=path.name, source="pvc://local/base", revision="unknown", dtype=dtype, context_length=LONGEST_CONTEXT
    )
    return base, path


def load_template(base: BaseRef, path: Path) -> Template:
    """Load the base's tokenizer and chat template."""
    tokenizer = load_tokenizer(base, path)
    if not tokenizer.chat_template:
        raise RunFailure(
            Reason.TEMPLATE_MISMATCH,
            f"the tokenizer of base {base.name} has no chat template; put a chat_template.jinja into {path}",
        )
    return Template(tokenizer, base.name, _vocabulary(path))


def load_tokenizer(base: BaseRef, path: Path) -> Any:
    """Load the base's tokenizer."""
    folder = base_folder(base, path)
    try:
        return _tokenizer_class(folder).from_pretrained(folder, local_files_only=True)
    except RunFailure:
        raise
    except Exception as error:
        raise _unusable(base, path, "tokenizer", "tokenizer files", error) from error


def load_config(base: BaseRef, path: Path) -> Any:
    """Load the base's configuration, which is cheap beside its weights."""
    from transformers import AutoConfig

    folder = base_folder(base, path)
    try:
        return AutoConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:
        raise _unusable(base, path, "config.json", "config.json", error) from error


def _vocabulary(folder: Path) -> int | None:
    """Return how many tokens the base has embeddings of, without importing what loads its configuration."""
    try:
        config = json.loads((folder / "config.json").read_text())
        size = config.get("vocab_size") or config["text_config"]["vocab_size"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
    return size if isinstance(size, int) else None


def _unusable(base: BaseRef, path: Path, part: str, files: str, error: Exception) -> RunFailure:
    """Say what can't be loaded: whatever is wrong in the folder, the cure is the same."""
    found = f"its {part} can't be loaded ({first_line(error)[:300]})"
    return RunFailure(Reason.BASE_MISSING, f"base {base.name}: {found}; put the model's own {files} into {path}")


def _tokenizer_class(folder: Path) -> Any:
    """Return the class that AutoTokenizer would choose; where that is the plain one, without importing torch for it."""
    config = json.loads((folder / "tokenizer_config.json").read_text())
    plain = config.get("tokenizer_class") in ("TokenizersBackend", "PreTrainedTokenizerFast")
    if plain and "auto_map" not in config and (folder / "tokenizer.json").is_file():
        from transformers.tokenization_utils_tokenizers import TokenizersBackend

        return TokenizersBackend
    from transformers import AutoTokenizer

    return AutoTokenizer


def chat_rows(path: Path) -> Iterator[ChatRow]:
    """Yield the file's rows, chats or steps, each checked."""
    return itertools.starmap(ChatLines().row, JsonLines(path))


def row_check(kind: str) -> Callable[[int, Any], ChatRow | PreferenceRow]:
    """Return the check of the lines of one file of this kind, which are given to it in their order."""
    return preference_row if kind == "preference" else ChatLines().row


def token_row(template: Template, row: ChatRow | PreferenceRow) -> TokenRow | TokenPair:
    """Return a checked row as the model sees it."""
    return token_pair(template, row) if isinstance(row, PreferenceRow) else template.token_row(row)


def training_rows(data: DataRef, path: Path, template: Template) -> Iterator[TokenRow]:
    """Yield the chat rows or steps of the very file that was inspected, in its order."""
    check = ChatLines()
    return _read(data, path, lambda number, value: template.token_row(check.row(number, value)))


def training_pairs(data: DataRef, path: Path, template: Template) -> Iterator[TokenPair]:
    """Yield the preference rows of the very file that was inspected, in its order."""
    return _read(data, path, lambda number, value: token_pair(template, preference_row(number, value)))


def _read(data: DataRef, path: Path, row: Callable[[int, Any], Row]) -> Iterator[Row]:
    if path.is_file():
        same_file(data, path, file_digest(path))
    lines = JsonLines(path)
    yield from itertools.starmap(row, lines)
    # It may have been replaced since the first look, which is there to fail early.
    same_file(data, path, lines.digest)


def same_file(data: DataRef, path: Path, found: str) -> None:
    """Refuse a file that is not the one that was inspected; `found` is its digest."""
    if data.sha256 is not None and found != data.sha256:
        raise RunFailure(
            Reason.DATASET_CHANGED,
            f"data set {data.name}: {path} has digest {found}, it was inspected with {data.sha256}; "
            "put the inspected file back, or create a new Dataset for the new one",
        )


def fitting_rows(rows: Iterable[Row], max_length: int, overlength: str) -> Iterator[Row]:
    """Yield the rows that train, each of at most `max_length` tokens; never cut or leave out silently.

    What is wrong with the rows together is raised behind the last one, so that no more than one need be in memory. Each is a
    line of its file.
    """
    count = longer = first = longest = at = kept = 0
    for count, row in enumerate(rows, 1):
        if len(row) > max_length:
            longer, first = longer + 1, first or count
            if len(row) > longest:
                longest, at = len(row), count
            if overlength != "truncate":
                continue
            row = row.truncated(max_length)
        # A row whose answers were all cut off teaches nothing.
        if row.teaches:
            kept += 1
            yield row
    if longer and overlength == "refuse":
        raise RunFailure(
            Reason.ROW_TOO_LONG,
            f"{longer} of {count} rows are longer than {max_length} tokens: the first is line {first}, "
            f"the longest line {at} with {longest}; "
            "raise spec.lora.maxLength (up to the base's context), or set spec.lora.overlength to drop or truncate",
        )
    if longer:
        print(f"{longer} rows are longer than {max_length} tokens: overlength={overlength} keeps {kept} rows")
    if not kept:
        raise RunFailure(
            Reason.ROW_TOO_LONG,
            f"none of the {count} rows has an answer within {max_length} tokens; raise spec.lora.maxLength",
        )
