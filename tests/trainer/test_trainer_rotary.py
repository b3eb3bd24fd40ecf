"""Rotary positions that depend on a row's length: each row trains with those that it has alone, in any company and after any other."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import COMMON, difference, gradient_of
from trainer_support import adapter_bytes, chat, make_tokenizer, run_file, train_here, write_rows

from halo_api.run_status import FrozenLora
from halo_trainer.data.bundle import Tally, linear_bundles
from halo_trainer.data.collate import collate, trained_tokens
from halo_trainer.data.template import TokenRow
from halo_trainer.methods import Sft
from halo_trainer.model import answer_logits, attach_lora, trained_parameters
from halo_trainer.objectives.sft import sft_loss
from halo_trainer.rotary import apart, forget_lengths, reach

CPU = torch.device("cpu")
REACH = 16
ROPES: dict[str, dict[str, Any]] = {
    "dynamic": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
    "longrope": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0, 1.1, 1.2, 1.3],
        "long_factor": [2.0, 3.0, 4.0, 5.0],
        "original_max_position_embeddings": REACH,
    },
}


def config(kind: str, **more: Any) -> Any:
    from transformers import AutoConfig

    longest = REACH if kind == "dynamic" else 64
    return AutoConfig.for_model(
        "llama", **(COMMON | {"max_position_embeddings": longest, "rope_parameters": ROPES[kind]} | more)
    )


def model(kind: str) -> Any:
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    base = AutoModelForCausalLM.from_config(config(kind))
    forget_lengths(base)
    made = attach_lora(base, FrozenLora(dataset="chat", rank=4, alpha=8), 0)
    for parameter in trained_parameters(made).values():
        torch.nn.init.normal_(parameter, std=0.3)
    return made.train()


def row(length: int, context: int, run: str = "") -> TokenRow:
    trained = bytearray([place >= context for place in range(length)])
    return TokenRow(array("i", [5 + 7 * place % 80 for place in range(length)]), trained, run)


def alone(kind: str, rows: list[TokenRow]) -> torch.Tensor:
    """Return the gradient of rows each of which a model of its own sees, and sees nothing else."""
    total = torch.zeros(())
    for each in rows:
        fresh = model(kind)
        batch = collate([each], 0, CPU)
        sft_loss(answer_logits(fresh, batch), batch.targets_BK, batch.trained_BK, trained_tokens(rows)).backward()
        total = total + gradient_of(fresh)
    return total


@pytest.mark.parametrize("kind", ROPES)
def test_a_step_has_the_gradient_of_its_rows_alone(kind: str) -> None:
    rows = [row(length, 4) for length in (40, 9, REACH, 25, REACH + 1, 12, 30)]
    trained, indices = model(kind), list(range(len(rows)))
    method = Sft(rows, trained, CPU)
    share = sorted(indices, key=lambda index: -len(rows[index]))
    for part in method.passes(share, 3):
        method.share(part, indices).loss.backward()
    assert difference(gradient_of(trained), alone(kind, rows)) <= 1e-5


@pytest.mark.parametrize("kind", ROPES)
def test_a_bundle_ends_where_its_steps_would_have_other_positions(kind: str) -> None:
    steps = [row(length, length - 3, "a") for length in (8, 13, REACH, 22, 30)]
    bundles = list(linear_bundles(steps, 8, Tally(), reach(config(kind))))
    assert [len(each) for each in bundles] == [REACH, 22, 30]
    trained, indices = model(kind), list(range(len(bundles)))
    method = Sft(bundles, trained, CPU)
    for part in method.passes(indices[::-1], 2):
        method.share(part, indices).loss.backward()
    assert difference(gradient_of(trained), alone(kind, steps)) <= 1e-5


def test_rows_of_other_bases_share_passes_as_ever() -> None:
    from transformers import AutoConfig

    lengths = [40, 20, 9, 8]
    assert apart([0, 1, 2, 3], lengths, AutoConfig.for_model("llama", **COMMON)) == [[0, 1, 2, 3]]
    assert apart([0, 1, 2, 3], lengths, config("longrope")) == [[0, 1], [2, 3]]
    assert apart([0, 1, 2, 3], lengths, config("dynamic")) == [[0], [1], [2, 3]]


def test_a_run_resumes_to_the_bit(root: Path) -> None:
    """As positions that stayed from a longer row before it would not."""
    from transformers import AutoModelForCausalLM

    tokenizer = make_tokenizer()
    torch.manual_seed(0)
    made = config("dynamic", vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id, bos_token_id=None)
    AutoModelForCausalLM.from_config(made).save_pretrained(root / "models" / "tiny")
    # Longer than the row that the memory of a pass is measured by.
    write_rows(root / "data" / "chat.jsonl", [chat("sky? " * count, "Blue.") for count in (150, 80, 100, 120, 90, 70)])
    plan = {"lora": {"packing": True, "microBatch": 2}, "batch": 2, "steps": 4, "saveSteps": 1}
    straight = train_here(run_file(output="straight", **plan), root)
    assert straight.outcome
    assert straight.outcome.result == "Succeeded", straight.outcome.message
    for kept in straight.checkpoints[:-1]:
        resume = {"step": kept.step, "uri": kept.uri, "digest": kept.digest}
        train_here(run_file(output=f"from-{kept.step}", resume=resume, **plan), root)
        assert adapter_bytes(root, f"from-{kept.step}") == adapter_bytes(root, "straight")
