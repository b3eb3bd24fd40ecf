"""What `hack/images`, `hack/venv` and `hack/base-model` share. Standard library only: they run before anything is installed."""
