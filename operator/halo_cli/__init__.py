"""`kubectl halo`: follow a run and read its log, through kubectl itself and so with its login and context."""
