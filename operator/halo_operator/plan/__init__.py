"""Pure decisions: what to create, delete, write and say, from what the world looks like; no I/O, no clock."""
