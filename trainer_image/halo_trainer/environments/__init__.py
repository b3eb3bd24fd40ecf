"""Where episodes run and how they are scored, each in a process of its own."""
