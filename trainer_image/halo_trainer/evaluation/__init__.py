"""How good a model is on held-out tasks, and whether another one is better beyond chance."""
