"""The labels by which the pods of a run are found, and adapters from outside."""

# The run's uid; which work the pod does; its attempt; its place among the attempt's pods.
RUN_LABEL = "halo.training/run"
ROLE_LABEL = "halo.training/role"
ATTEMPT_LABEL = "halo.training/attempt"
RANK_LABEL = "halo.training/rank"
# Which of the pods that were this rollout server in the attempt; 1 is the first.
INCARNATION_LABEL = "halo.training/incarnation"
# On an Adapter: "imported" where no run of this cluster made it.
ORIGIN_LABEL = "halo.training/origin"
IMPORTED = "imported"
