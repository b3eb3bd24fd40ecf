"""The supervisor, process 1 of every pod of a run: starts the role, pushes its report, keeps the deadline."""
