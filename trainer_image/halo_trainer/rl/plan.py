"""What a run of online RL has in common with any other: its plan as a loop, a LoRA and a checkpoint know one. Pure."""

from __future__ import annotations

from halo_api.run_file import RlvrPlan, TrainPlan
from halo_api.run_status import FrozenLora
from halo_trainer.run import Adam


def train_plan(plan: RlvrPlan, dataset: str) -> TrainPlan:
    """Return the plan whose LoRA and optimizer are the recipe's; a batch is the episodes of a step."""
    lora = plan.settings.lora
    return TrainPlan(
        steps=plan.steps,
        batch=plan.episodes,
        save_steps=plan.save_steps,
        seed=plan.seed,
        lora=FrozenLora(
            dataset=dataset,
            rank=lora.rank,
            alpha=lora.alpha,
            dropout=lora.dropout,
            learning_rate=lora.learning_rate,
            warmup_steps=lora.warmup_steps,
            schedule=lora.schedule,
            weight_decay=lora.weight_decay,
            max_grad_norm=lora.max_grad_norm,
            max_length=longest_row(plan),
            micro_batch=1,
            packing=True,
        ),
        output=plan.output,
        parent=plan.parent,
        resume=plan.resume,
        context_parallel=plan.context_parallel,
    )


def adam_of(plan: RlvrPlan) -> Adam:
    """Return the recipe's AdamW."""
    return Adam((plan.settings.lora.beta1, plan.settings.lora.beta2), plan.settings.lora.epsilon)


def longest_row(plan: RlvrPlan) -> int:
    """Return the most tokens that a row can have: those of an episode, as long ones are masked."""
    return min(plan.context_length, plan.settings.rows.max_tokens or plan.context_length)


def groups_of(plan: RlvrPlan) -> int:
    """Return how many tasks a step trains on."""
    return max(plan.episodes // plan.settings.rollouts.group_size, 1)
