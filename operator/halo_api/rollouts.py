"""What a run's trainer and its rollout servers say to each other: where a server is, and which policy it samples with.

A rollout pod has two ports. On one is vLLM's own OpenAI server, which episodes are sampled from, token in and token out. On
the other is its guard, ours: it takes the policy, and answers ready only while the server can sample with the one announced.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from halo_api.adapter import AdapterFile
from halo_api.base import ApiModel, Sha256, ShortText, Text, VolumeUri

SERVE_PORT = 8000
GUARD_PORT = 8001
# The file beside the report in which the supervisor leaves the addresses that the operator answered a push with.
SERVERS_NAME = "servers.json"
# The guard's paths: liveness and readiness of the pod, and the policy (GET what is served, PUT what shall be).
LIVE_PATH, READY_PATH, POLICY_PATH = "/live", "/ready", "/policy"
# The name that the base itself, or a base with a policy folded into it, is asked for by.
BASE_MODEL_NAME = "base"


class ServerAddress(ApiModel):
    """Where a rollout server is; a replaced one has a higher incarnation and another host name."""

    server: Annotated[int, Field(ge=0, description="Counts from 0, as in status.topology.rollout.")]
    incarnation: Annotated[int, Field(ge=1, description="Counts the pods that were this server in this attempt.")]
    host: Annotated[ShortText, Field(description="Its host name, which holds the attempt and the incarnation.")]
    serve_port: int = SERVE_PORT
    guard_port: int = GUARD_PORT

    @property
    def url(self) -> str:
        """Where episodes are sampled: vLLM's own server."""
        return f"http://{self.host}:{self.serve_port}"

    @property
    def guard(self) -> str:
        """Where the policy is announced."""
        return f"http://{self.host}:{self.guard_port}"


class Servers(ApiModel):
    """Every server of the run's current attempt, as the operator knows them."""

    attempt: int
    servers: Annotated[tuple[ServerAddress, ...], Field(max_length=512)]


class PolicyAdapter(ApiModel):
    """A LoRA on a volume that trainer and servers mount."""

    uri: VolumeUri
    digest: Annotated[
        Sha256, Field(description="The digest over its files, which the guard checks before it loads them.")
    ]
    files: Annotated[tuple[AdapterFile, ...], Field(max_length=64)]


class Policy(ApiModel):
    """What a server is to sample with from now on."""

    version: Annotated[int, Field(ge=0, description="The optimizer steps behind it; 0 is what the run started from.")]
    attempt: Annotated[int, Field(ge=1, description="A server of another attempt refuses it.")]
    name: Annotated[ShortText, Field(description="RUN-aATTEMPT-sSTEP, which is never used for other weights.")]
    serving: Literal["folded", "unmerged"]
    adapter: Annotated[PolicyAdapter | None, Field(description="Unset: the base itself.")] = None

    @property
    def model(self) -> str:
        """The model that requests name: a folded policy is the base's own weights."""
        return self.name if self.serving == "unmerged" and self.adapter else BASE_MODEL_NAME


class PolicyAnswer(ApiModel):
    """What the guard says of the policy: the one that is served, and how long it took to take it."""

    policy: Policy | None = None
    seconds: float = 0.0
    problem: Annotated[Text | None, Field(description="Why it was not taken, in one sentence.")] = None


def policy_name(run_name: str, run_uid: str, attempt: int, version: int) -> str:
    """Return the name of a policy, the same for nothing else: a run of the same name made again has another uid."""
    return f"{run_name[:80]}-{run_uid[:8]}-a{attempt}-s{version}"


class RolloutPlan(ApiModel):
    """What a rollout pod serves."""

    server: Annotated[int, Field(ge=0)]
    incarnation: Annotated[int, Field(ge=1)] = 1
    gpus: Annotated[int, Field(ge=1, description="GPUs of this server; the base is tensor parallel over them.")]
    context_length: Annotated[int, Field(ge=1, description="Tokens that prompt and answer may have together.")]
    rank: Annotated[int, Field(ge=1, description="Rank of the LoRA that policies have.")]
    serving: Literal["folded", "unmerged"]
    routed_experts: Annotated[bool, Field(description="Answers carry the experts that each token was routed to.")] = (
        False
    )
    serve_port: int = SERVE_PORT
    guard_port: int = GUARD_PORT
