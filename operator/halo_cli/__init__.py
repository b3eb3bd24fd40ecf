"""`kubectl halo`: quote, follow, explain and import runs, through kubectl itself and so with its login and context."""
