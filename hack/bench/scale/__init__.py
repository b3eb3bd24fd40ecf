"""How the operator does with many runs at once, against a real control plane and nodes that kwok plays."""
