"""The trainer: what runs inside a run's pods, from rows to a published adapter."""
