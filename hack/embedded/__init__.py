"""A whole Kubernetes on one machine: what `hack/cluster` runs. Standard library only, so that it needs no environment."""
