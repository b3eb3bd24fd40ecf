"""The good objects that the tables change: one TrainingJob a base."""

from __future__ import annotations

from typing import Any

from tests.refusals import Body, at


def job(base: str, **spec: Any) -> Body:
    """Return a TrainingJob that the schema accepts, once `spec` has the base's part."""
    common = {"base": base, "baseModel": "qwen3-8b", "gpu": {"type": "h100", "count": 4}, "steps": 200, "batch": 16}
    return {
        "apiVersion": "halo.training/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "run"},
        "spec": common | spec,
    }


SFT = job("lora_trl", lora={"dataset": "tickets"})
DPO = job("lora_trl", lora={"dataset": "preferred", "method": "dpo"})
RLVR = job("halo_rlvr", rlvr={"recipe": "sql_v3", "rolloutGpus": 2, "dataset": "questions"})
BRIDGED = job("halo_rlvr", rlvr={"recipe": "bridged_v1", "rolloutGpus": 2, "envRevision": "returns-desk-v2"})
RFT = job("halo_rft", gpu={"type": "h100", "count": 1}, rft={"recipe": "sql_v3", "dataset": "questions"})
RFT_BRIDGED = job(
    "halo_rft", gpu={"type": "h100", "count": 1}, rft={"recipe": "bridged_v1", "envRevision": "returns-desk-v2"}
)

__all__ = ["BRIDGED", "DPO", "RFT", "RFT_BRIDGED", "RLVR", "SFT", "at", "job"]
