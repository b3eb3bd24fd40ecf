"""The names of the frozen recipes by what a spec must say with them; the recipes themselves are files of the operator."""

from __future__ import annotations

DEFAULT = "sql_v3"

BRIDGED = ("bridged_v1", "bridged_v2", "bridged_v3", "bridged_v4", "bridged_v5")

RECIPES = (
    "sql_v2",
    "sql_v3",
    "support_v1",
    "structured_v1",
    "structured_v2",
    "graded_v2",
    "harness_v1",
    "sql_v4_dapo_sync",
    "sql_v4_dapo_async1",
    "sql_v4_cispo_reuse2",
    "graded_v3_gspo_reuse2",
    "sql_v4_dapo_sync_r3",
    "sql_v4_dapo_sync_lora",
    "sql_v4_dapo_r3_122b",
    "code_contests_v4",
    *BRIDGED,
)

# Retired: old runs stay readable and resumable, a new one is refused with the name of what came after.
RETIRED = {
    "code_contests_v1": "code_contests_v4",
    "code_contests_v2": "code_contests_v4",
    "code_contests_v3": "code_contests_v4",
    "sql_v1": "sql_v3",
    "graded_v1": "graded_v2",
    "sql_v4_cispo_sync": "sql_v4_cispo_reuse2",
}

# Rollouts are collected while the step before trains: on two servers or more.
ASYNC = ("sql_v4_dapo_async1",)
# Two optimizer updates a round.
REUSE2 = ("sql_v4_cispo_reuse2", "graded_v3_gspo_reuse2")
# The programs' tests are the whole reward.
CODE = ("code_contests_v4",)
# Rollouts sample without thinking, so that no student of mode reasoning can come of it.
NO_THINKING = ("sql_v4_dapo_r3_122b",)
# The one bridged recipe that rejection sampling knows.
RFT_BRIDGED = "bridged_v1"
# Made for one base model: only a base that lists it trains it.
LISTED_ONLY = ("sql_v4_dapo_r3_122b",)
