"""Online RL with verifiable rewards: rounds of episodes, rows, updates and published policies."""
