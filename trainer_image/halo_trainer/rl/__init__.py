"""Online RL: rounds of sampling, scoring and updates, whose policy goes to the rollout servers after each step."""
