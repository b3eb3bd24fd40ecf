"""Stops at the budget, on real trainers: how much more than its hold a run uses, with the operator up and with it killed."""
