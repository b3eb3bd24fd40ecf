"""Conditions: their types, the closed list of reasons, and the shape Kubernetes tools expect."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from halo_api.base import ApiModel, Text, Time


class ConditionType(StrEnum):
    """What a condition is about; `Reconciling` and `Stalled` are present only when true (kstatus)."""

    ACCEPTED = "Accepted"
    RESERVED = "Reserved"
    SCHEDULED = "Scheduled"
    RUNNING = "Running"
    PUBLISHED = "Published"
    SUSPENDED = "Suspended"
    COMPLETE = "Complete"
    FAILED = "Failed"
    READY = "Ready"
    RECONCILING = "Reconciling"
    STALLED = "Stalled"
    OVERDRAWN = "Overdrawn"
    VERIFIED = "Verified"
    DISK_PRESSURE = "DiskPressure"
    ROLLOUT_DEGRADED = "RolloutDegraded"


class Reason(StrEnum):
    """Every reason a condition can give; `docs/conditions.md` explains each."""

    # The STATE column: reasons of Ready.
    WAITING = "Waiting"
    REFUSED = "Refused"
    QUEUED = "Queued"
    STARTING = "Starting"
    RUNNING = "Running"
    PUBLISHING = "Publishing"
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    BUDGET_REACHED = "BudgetReached"
    FAILED = "Failed"
    CANCELLED = "Cancelled"
    # Accepted.
    CHECKS_PASSED = "ChecksPassed"
    DATASET_PENDING = "DatasetPending"
    DATASET_INVALID = "DatasetInvalid"
    DATASET_NOT_COUNTED = "DatasetNotCounted"
    UNKNOWN_BASE_MODEL = "UnknownBaseModel"
    BASE_NOT_OFFERED = "BaseNotOffered"
    UNKNOWN_GPU_CLASS = "UnknownGpuClass"
    NOT_YET_AVAILABLE = "NotYetAvailable"
    ROW_TOO_LONG = "RowTooLong"
    ADAPTER_NAME_TAKEN = "AdapterNameTaken"
    UNFIT = "Unfit"
    INVALID_SPEC = "InvalidSpec"
    OBJECT_UNREADABLE = "ObjectUnreadable"
    FEATURE_OFF = "FeatureOff"
    RATE_LIMITED = "RateLimited"
    UNKNOWN_CRITERION = "UnknownCriterion"
    CRITERION_WRONG_UNIT = "CriterionWrongUnit"
    CRITERION_NOT_CALIBRATED = "CriterionNotCalibrated"
    CRITERION_DRIFTED = "CriterionDrifted"
    GRADES_TOO_OLD = "GradesTooOld"
    NOT_ENOUGH_PROMPTS = "NotEnoughPrompts"
    ALIAS_MISSING = "AliasMissing"
    CANARY_NOT_ALLOWED = "CanaryNotAllowed"
    STORAGE_NOT_CONFIGURED = "StorageNotConfigured"
    PROVISIONING_NOT_CONFIGURED = "ProvisioningNotConfigured"
    NO_WALLET = "NoWallet"
    NO_PRICE = "NoPrice"
    INSUFFICIENT_FUNDS = "InsufficientFunds"
    BUDGET_REQUIRED = "BudgetRequired"
    BUDGET_NOT_ALLOWED = "BudgetNotAllowed"
    BUDGET_TOO_SMALL = "BudgetTooSmall"
    PARENT_PENDING = "ParentPending"
    PARENT_UNFIT = "ParentUnfit"
    UNKNOWN_RECIPE = "UnknownRecipe"
    RECIPE_RETIRED = "RecipeRetired"
    RECIPE_NOT_OFFERED = "RecipeNotOffered"
    MODE_UNFIT = "ModeUnfit"
    TRAINER_UNFIT = "TrainerUnfit"
    DATASET_UNFIT = "DatasetUnfit"
    ENVIRONMENT_PENDING = "EnvironmentPending"
    ENVIRONMENT_UNFIT = "EnvironmentUnfit"
    PHASE_TOO_LONG = "PhaseTooLong"
    CRITERION_PENDING = "CriterionPending"
    # Reserved.
    BUDGET_HELD = "BudgetHeld"
    HOLD_PENDING = "HoldPending"
    NOTHING_HELD = "NothingHeld"
    SETTLED = "Settled"
    # Scheduled and Running.
    PODS_BOUND = "PodsBound"
    UNSCHEDULABLE = "Unschedulable"
    IMAGE_PULL_FAILED = "ImagePullFailed"
    POD_REJECTED = "PodRejected"
    NOT_STARTED = "NotStarted"
    TRAINING = "Training"
    RESTARTING = "Restarting"
    FINISHED = "Finished"
    NOT_SUSPENDED = "NotSuspended"
    DISK_ALMOST_FULL = "DiskAlmostFull"
    SERVER_REPLACED = "ServerReplaced"
    EPISODES_UNSCORED = "EpisodesUnscored"
    # How a run, or an inspection, can fail.
    BAD_ROW = "BadRow"
    TEMPLATE_MISMATCH = "TemplateMismatch"
    DATASET_CHANGED = "DatasetChanged"
    DATASET_MISSING = "DatasetMissing"
    BASE_MISSING = "BaseMissing"
    OUT_OF_MEMORY = "OutOfMemory"
    DISK_FULL = "DiskFull"
    PERMISSION_DENIED = "PermissionDenied"
    NON_FINITE_LOSS = "NonFiniteLoss"
    BUDGET_BEFORE_FIRST_CHECKPOINT = "BudgetBeforeFirstCheckpoint"
    INTERRUPTED = "Interrupted"
    CRASHED = "Crashed"
    RANK_LOST = "RankLost"
    ROLLOUT_LOST = "RolloutLost"
    NODE_LOST = "NodeLost"
    EVICTED = "Evicted"
    CHECKPOINT_CORRUPT = "CheckpointCorrupt"
    WEIGHT_SYNC_MISMATCH = "WeightSyncMismatch"
    WEIGHT_SYNC_TIMEOUT = "WeightSyncTimeout"
    BACKOFF_LIMIT_EXCEEDED = "BackoffLimitExceeded"
    # Workspace.
    FUNDED = "Funded"
    UNFUNDED = "Unfunded"
    OVERDRAWN = "Overdrawn"
    # Dataset and Adapter.
    INSPECTING = "Inspecting"
    INSPECTED = "Inspected"
    PUBLISHED = "Published"
    VERIFYING = "Verifying"
    VERIFIED = "Verified"
    NO_RECEIPT = "NoReceipt"
    CHANGED = "Changed"
    TRUNCATED = "Truncated"
    MISSING = "Missing"
    EXTRA = "Extra"
    OTHER_ADAPTER = "OtherAdapter"
    UNKNOWN_KEY = "UnknownKey"
    WRONG_SIGNATURE = "WrongSignature"
    BAD_ENVELOPE = "BadEnvelope"
    WRONG_PAYLOAD_TYPE = "WrongPayloadType"
    BAD_STATEMENT = "BadStatement"


class Condition(ApiModel):
    """One observation of the resource (metav1.Condition)."""

    type: Annotated[str, Field(max_length=63, description="What the condition is about.")]
    status: Annotated[Literal["True", "False", "Unknown"], Field(description="Whether it holds.")]
    reason: Annotated[
        str, Field(min_length=1, max_length=64, description="Why, as one CamelCase word of a closed, documented list.")
    ]
    message: Annotated[Text, Field(description="Why, for a person.")]
    observed_generation: Annotated[
        int | None, Field(default=None, description="The metadata.generation that was looked at.")
    ]
    last_transition_time: Annotated[Time, Field(description="When the status of the condition last changed.")]


def condition_of(conditions: list[Condition] | tuple[Condition, ...], type_: str) -> Condition | None:
    """Return the condition of that type, if it is there."""
    return next((c for c in conditions if c.type == type_), None)


def is_true(conditions: list[Condition] | tuple[Condition, ...], type_: str) -> bool:
    """Whether the condition of that type is there and True."""
    found = condition_of(conditions, type_)
    return found is not None and found.status == "True"
