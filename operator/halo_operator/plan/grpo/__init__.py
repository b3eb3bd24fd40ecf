"""Plans of GrpoRuns: what they see, what they use, whether they are accepted."""
