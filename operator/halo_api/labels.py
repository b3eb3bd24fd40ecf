"""The labels by which the pods of a run are found."""

# The run's uid; which work the pod does; its attempt; its place among the attempt's pods.
RUN_LABEL = "halo.training/run"
ROLE_LABEL = "halo.training/role"
ATTEMPT_LABEL = "halo.training/attempt"
RANK_LABEL = "halo.training/rank"
