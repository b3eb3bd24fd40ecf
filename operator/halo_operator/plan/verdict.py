"""Judges an adapter by what a pod found of its files and by its receipt: what is wrong, or that nothing is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from halo_api.adapter import Adapter, AdapterSpec, Ancestor
from halo_api.conditions import Reason
from halo_api.digests import files_digest
from halo_api.receipt import KEYS_CONFIG_MAP, RECEIPT_ANNOTATION, Receipt
from halo_api.receipt_check import Finding, Flaw, Verifier, check_adapter, check_config, check_reference, opened
from halo_api.report import AdapterConfig, VerificationReport
from halo_operator.plan.world import Meta

# As many as the schema lets a status hold.
LONGEST_LINE = 64
# The first is the reason; a few more tell whether one byte went or everything.
TOLD = 3

Wrong = tuple[Reason, str]


@dataclass(frozen=True)
class Judgement:
    """What was found wrong, the worst first, and what the receipt says if it can be believed."""

    wrong: tuple[Wrong, ...]
    receipt: Receipt | None = None
    key_id: str | None = None

    @property
    def message(self) -> str:
        """What is wrong, in one line."""
        told = "; ".join(words for _, words in self.wrong[:TOLD])
        more = len(self.wrong) - TOLD
        return f"{told}; and {more} more" if more > 0 else told


def judge(
    meta: Meta, spec: AdapterSpec, envelope: str | None, keys: Mapping[str, Verifier], found: VerificationReport
) -> Judgement:
    """Return what is wrong with an adapter; of an imported one, which has no receipt to hold it to, what its spec says."""
    files = tuple(wrong_files(spec, found))
    if spec.trained_by is None:
        return Judgement((*files, *wrong_lora(spec, found.config)))
    if spec.receipt is None or envelope is None:
        return Judgement((no_receipt(spec, envelope), *files))
    try:
        right = opened(envelope.encode(), keys)
    except Flaw as flaw:
        return Judgement((told(flaw.finding), *files))
    said = right.receipt
    differs = check_adapter(said, meta.namespace, meta.name, spec) or check_reference(spec, envelope.encode())
    config = check_config(said, as_written(found.config)) if not files and not differs else []
    wrong = (*map(told, differs), *files, *map(told, config))
    return Judgement(wrong) if differs else Judgement(wrong, said, right.key_id)


def wrong_files(spec: AdapterSpec, found: VerificationReport) -> Iterator[Wrong]:
    """Yield what the pod found wrong with the files; that it found nothing is only believed of the right digest."""
    for one in found.problems:
        # A pod of another version may have another word.
        yield (Reason(one.problem) if one.problem in list(Reason) else Reason.CHANGED), one.message
    of_list = files_digest(spec.files)
    if spec.digest != of_list:
        yield Reason.CHANGED, f"spec.digest: found {spec.digest}, and spec.files has {of_list}"
    elif not found.problems and found.digest != spec.digest:
        yield Reason.CHANGED, f"{spec.uri}: found files of {found.digest}, and spec.digest is {spec.digest}"


def wrong_lora(spec: AdapterSpec, config: AdapterConfig) -> Iterator[Wrong]:
    """Yield in what the adapter's own configuration is another LoRA than its spec says."""
    for field, key, says, is_ in (
        ("rank", "r", spec.rank, config.rank),
        ("alpha", "lora_alpha", spec.alpha, config.alpha),
    ):
        if says != is_:
            found = "nothing" if is_ is None else f"{is_:g}"
            yield Reason.CHANGED, f"spec.{field}: found {says:g}, and {key} of its adapter_config.json is {found}"


def no_receipt(spec: AdapterSpec, envelope: str | None) -> Wrong:
    """Say which half of a receipt is missing."""
    where, other = f"metadata.annotations[{RECEIPT_ANNOTATION}]", "spec.receipt"
    if envelope is not None or spec.receipt is None:
        where, other = other, where
    return (
        Reason.NO_RECEIPT,
        f"{where}: found none, and a run made it (spec.trainedBy); a receipt is there with {other}",
    )


def told(finding: Finding) -> Wrong:
    """Return a finding as a reason and its words."""
    return Reason(finding.problem), f"{finding.where}: {finding.message}"


def as_written(config: AdapterConfig) -> dict[str, str | float | None]:
    """Return what a configuration says under PEFT's own keys."""
    return {
        "base_model_name_or_path": config.base,
        "revision": config.revision,
        "r": config.rank,
        "lora_alpha": config.alpha,
    }


def what_would_do(reason: Reason, spec: AdapterSpec) -> str:
    """Return what somebody can do about the first thing that is wrong."""
    if reason == Reason.UNKNOWN_KEY:
        return f"put its public key back into the ConfigMap {KEYS_CONFIG_MAP} if it is one of yours"
    if reason in (Reason.CHANGED, Reason.TRUNCATED, Reason.MISSING, Reason.EXTRA):
        return f"put {spec.uri} back as it was published, or delete the Adapter"
    return "put the Adapter back as it was published, or delete it"


def lineage(
    spec: AdapterSpec, receipt: Receipt | None, before: Sequence[Ancestor], parent: Adapter | None
) -> list[Ancestor]:
    """Return what an adapter descends from, its parent first, as far as its receipt and its parent's status say.

    What was known stays when the parent is deleted; another adapter of the parent's name is not the parent.
    """
    if spec.parent is None:
        return []
    proven = receipt.parent if receipt else None
    head = Ancestor(name=spec.parent.name, digest=spec.parent.digest, receipt=proven.receipt if proven else None)
    if parent is not None and is_it(parent.spec, head):
        further = parent.status.lineage if parent.status else []
    else:
        further = list(before[1:]) if before and before[0].digest == head.digest else []
    return [head, *further][:LONGEST_LINE]


def is_it(spec: AdapterSpec, ancestor: Ancestor) -> bool:
    """Whether an Adapter is that ancestor: two runs can have made the same bytes, but not the same receipt."""
    receipt = spec.receipt.digest if spec.receipt else None
    return spec.digest == ancestor.digest and (ancestor.receipt is None or ancestor.receipt == receipt)
