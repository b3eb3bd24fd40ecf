"""A policy as servers have it, and what a server must agree with the trainer on."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from rl_support import CPU, recipe
from rollout_peer import ids, policy
from tiny_models import tiny_model

from halo_api.conditions import Reason
from halo_trainer.failures import RunFailure
from halo_trainer.fast_lora import install_fast_lora
from halo_trainer.rl.folded import as_folded
from halo_trainer.rl.policies import Own, agreement, check_agreement, own_scores, prune_policies
from halo_trainer.rl.scoring import Scorer
from halo_trainer.rollouts.background import Scored
from halo_trainer.rollouts.completion import ServerFailed
from halo_trainer.rollouts.fleet import NoServers
from halo_trainer.rollouts.scores import scores_of

SYNC = recipe("sql_v4_dapo_sync").weight_sync


def test_pitfall_26_a_folded_policy_is_a_fresh_merge_to_the_bit_however_often_it_is_made() -> None:
    """In bf16, over a hundred policies: nothing is folded in place, so nothing drifts, and the LoRA is back behind each."""
    model, tokens = tiny_model("llama", torch.bfloat16), torch.tensor([[3, 1, 4, 1, 5]])
    install_fast_lora(model)
    before = model(input_ids=tokens).logits
    factors = [parameter for name, parameter in model.named_parameters() if "lora_" in name]
    random = torch.Generator().manual_seed(5)
    for _ in range(100):
        with torch.no_grad(), as_folded(model) as whole:
            folded = model(input_ids=tokens).logits
            for parameter in factors:
                parameter.add_(0.01 * torch.randn(parameter.shape, generator=random).to(parameter.dtype))
            last = model(input_ids=tokens).logits
    assert whole
    assert not torch.equal(folded, last)
    expected = fresh_merge(model)
    with torch.no_grad(), as_folded(model):
        assert torch.equal(model(input_ids=tokens).logits, last)
        assert torch.equal(last, expected(input_ids=tokens).logits)
    assert not torch.equal(before, model(input_ids=tokens).logits)


def fresh_merge(model: torch.nn.Module) -> torch.nn.Module:
    """The base with W + s B A, computed in fp32 once."""
    base = tiny_model("llama", torch.bfloat16).unload()
    for name, layer in model.named_modules():
        if hasattr(layer, "lora_A"):
            weight = base.get_submodule(name.removeprefix("base_model.model.")).weight
            b, a = layer.lora_B["default"].weight.float(), layer.lora_A["default"].weight.float()
            weight.data = (layer.base_layer.weight.float() + layer.scaling["default"] * (b @ a)).bfloat16()
    return base


def test_the_trainers_scores_are_those_of_its_layers_without_a_temperature() -> None:
    model = tiny_model("qwen3", torch.float64)
    prompts = [ids(5, 6, 7, 8, 9), ids(1, 2)]
    own = own_scores(Scorer(model, CPU, 0.5).alone(), prompts, 3, folds=True)
    alone = tiny_model("qwen3", torch.float64)
    with torch.no_grad():
        expected = [
            float(alone(input_ids=torch.tensor([list(prompt)])).logits[0, at - 1].log_softmax(-1)[prompt[at]])
            for prompt, first in ((prompts[0], 2), (prompts[1], 1))
            for at in range(first, len(prompt))
        ]
    assert own.lora == pytest.approx(expected, abs=1e-9)
    assert own.folded == pytest.approx(expected, abs=1e-9)


def test_servers_are_held_to_the_bound_of_the_recipe() -> None:
    own = Own([-1.0, -2.0], [-1.1, -2.1])
    near = agreement(own, Scored({0: [-1.1, -2.1], 1: [-1.15, -2.05]}, {2: "it hung"}))
    assert near.gaps == pytest.approx({0: 0.0, 1: 0.05})
    assert near.rounding == pytest.approx({0: 0.1, 1: 0.1})
    check_agreement(near, policy(3), SYNC)
    assert "2 servers agree" in str(near)
    far = agreement(own, Scored({0: [-1.1, -2.1], 1: [-1.6, -2.1]}, {}))
    with pytest.raises(
        RunFailure, match=r"step 3: server 1 took policy run-a1-s3 .* 0.25 nats a token .* allows 0.1"
    ) as refused:
        check_agreement(far, policy(3), SYNC)
    assert refused.value.reason == Reason.WEIGHT_SYNC_MISMATCH
    with pytest.raises(RunFailure):
        check_agreement(agreement(own, Scored({0: [math.nan, -2.1]}, {})), policy(3), SYNC)
    with pytest.raises(NoServers, match="server 2: it hung"):
        agreement(own, Scored({}, {2: "it hung"}))


def test_a_reply_without_the_prompts_log_probabilities_is_none() -> None:
    told = [None, {"6": {"logprob": -1.5, "rank": 2}, "9": {"logprob": -0.5}}, {"7": {"logprob": -2}}]
    assert scores_of(ids(5, 6, 7), 2, {"choices": [{"prompt_logprobs": told}]}) == [-1.5, -2.0]
    for wrong in (
        {},
        {"choices": []},
        {"choices": [{"prompt_logprobs": None}]},
        {"choices": [{"prompt_logprobs": told[:2]}]},
    ):
        with pytest.raises(ServerFailed):
            scores_of(ids(5, 6, 7), 2, wrong)


def test_the_last_two_policies_stay(tmp_path: Path) -> None:
    for version in (1, 2, 9, 10):
        (tmp_path / f"s{version}").mkdir()
    (tmp_path / ".s11.partial").mkdir()
    prune_policies(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".s11.partial", "s10", "s9"]
