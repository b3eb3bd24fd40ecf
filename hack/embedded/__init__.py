"""A whole Kubernetes on one machine: what `hack/cluster` runs, in the standard library so it needs no environment."""
