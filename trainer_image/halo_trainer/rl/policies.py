"""The policies of a run: files that trainer and servers mount, taken by every server, and held to the trainer's own numbers.

A policy's name is never used for other weights. Its files lie in the attempt's own folder, `policies/sSTEP`; those of the last
two stay, as a server that was replaced may still be reading one.
"""

from __future__ import annotations

import shutil
import statistics
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from halo_api.conditions import Reason
from halo_api.digests import files_digest
from halo_api.recipe_settings import WeightSync
from halo_api.rollouts import Policy, PolicyAdapter, policy_name
from halo_trainer.adapter import write_adapter
from halo_trainer.checkpoints.digest import as_written
from halo_trainer.data.template import TokenRow
from halo_trainer.failures import RunFailure
from halo_trainer.files import whole_folder
from halo_trainer.rl.folded import as_folded
from halo_trainer.rl.scoring import Scorer
from halo_trainer.rollouts.background import Scored
from halo_trainer.rollouts.fleet import NoServers
from halo_trainer.run import Run

FOLDER = "policies"
KEPT = 2


def written_policy(run: Run, serving: str, begins: bool) -> Policy:
    """Write the policy of the step that was done; `begins`: it is the base itself, of which there is nothing to write."""
    identity, version = run.file.run, run.state.step
    policy = Policy(
        version=version,
        attempt=identity.attempt,
        name=policy_name(identity.name, identity.uid, identity.attempt, version),
        serving="unmerged" if serving == "unmerged" else "folded",
    )
    if begins:
        return policy
    with whole_folder(run.folder(FOLDER, f"s{version}")) as partial:
        files = as_written(partial, write_adapter(run.model, run.file.base, partial))
    uri = f"{run.plan.output}/{FOLDER}/s{version}"
    adapter = PolicyAdapter(uri=uri, digest=files_digest(files), files=files)
    return policy.model_copy(update={"adapter": adapter})


def prune_policies(folder: Path, kept: int = KEPT) -> None:
    """Delete all but the newest policies of an attempt."""
    found = sorted((int(path.name[1:]), path) for path in folder.glob("s*") if path.name[1:].isdigit())
    for _, path in found[:-kept]:
        shutil.rmtree(path, ignore_errors=True)


@dataclass(frozen=True)
class Own:
    """What the trainer computes for the prompts' last tokens: with its LoRA, and as folded into the base, where it can."""

    lora: list[float]
    folded: list[float] | None = None


def own_scores(scorer: Scorer, prompts: Sequence[array[int]], tokens: int, folds: bool) -> Own:
    """Score the last tokens of each prompt, in the order in which servers do; without a temperature, as theirs are."""
    rows = []
    for prompt in prompts:
        trained = bytearray(len(prompt))
        last = min(tokens, len(prompt) - 1)
        trained[len(prompt) - last :] = b"\1" * last
        rows.append(TokenRow(prompt, trained))
    with torch.no_grad():
        lora = [value for row in rows for value in scorer.log_probs([row])[0].tolist()]
        if not folds:
            return Own(lora)
        with as_folded(scorer.model) as whole:
            folded = [value for row in rows for value in scorer.log_probs([row])[0].tolist()]
    return Own(lora, folded if whole else None)


@dataclass(frozen=True)
class Agreement:
    """How far servers are from the trainer, as means of |log p - log p| in nats, by server.

    `gaps` is what is held to the recipe's bound: of the same weights, unmerged or folded as the server has them. `rounding` is
    what folding changed too, which is what training sees of a folded policy.
    """

    gaps: dict[int, float]
    rounding: dict[int, float]

    def __str__(self) -> str:
        worst = max(self.gaps.values())
        more = max(self.rounding.values())
        told = f"{len(self.gaps)} servers agree with the trainer to {worst:.2e} nats a token"
        return told if more == worst else f"{told}, {more:.2e} beside its LoRA"


def agreement(own: Own, scored: Scored) -> Agreement:
    """Compare what servers computed with the trainer's own. Raises NoServers where none computed anything."""
    if not scored.values:
        told = "; ".join(f"server {server}: {problem}" for server, problem in sorted(scored.problems.items()))
        raise NoServers(f"no rollout server scored the prompts of the check ({told})")
    same = own.lora if own.folded is None else own.folded
    return Agreement(_gaps(scored.values, same), _gaps(scored.values, own.lora))


def _gaps(values: Mapping[int, Sequence[float]], own: Sequence[float]) -> dict[int, float]:
    return {
        server: statistics.fmean(abs(theirs - ours) for theirs, ours in zip(each, own, strict=True))
        for server, each in values.items()
    }


def check_agreement(found: Agreement, policy: Policy, sync: WeightSync) -> None:
    """Refuse a step that a server computes with other numbers than the trainer: it would be sampled from another policy."""
    wrong = {server: gap for server, gap in found.gaps.items() if not gap <= sync.max_mean_log_prob_gap}
    if wrong:
        server, gap = max(wrong.items(), key=lambda each: (each[1] != each[1], each[1]))
        raise RunFailure(
            Reason.WEIGHT_SYNC_MISMATCH,
            f"step {policy.version}: server {server} took policy {policy.name} and scores {sync.prompts} prompts {gap:.3g} nats "
            f"a token from the trainer, the recipe allows {sync.max_mean_log_prob_gap:g}; compare the versions of the "
            "trainer's and the rollout image and the base's files",
        )


def disagreement(own: Own, values: Sequence[float], sync: WeightSync) -> str | None:
    """Return in one sentence how far one server is beyond the bound; None: it is within."""
    gap = agreement(own, Scored({0: list(values)}, {})).gaps[0]
    if gap <= sync.max_mean_log_prob_gap:
        return None
    return f"it scores {sync.prompts} prompts {gap:.3g} nats a token from the trainer, the recipe allows {sync.max_mean_log_prob_gap:g}"
