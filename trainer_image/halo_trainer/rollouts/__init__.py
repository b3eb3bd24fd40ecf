"""Samples episodes from the run's rollout servers, token in and token out."""
