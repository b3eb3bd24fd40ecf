"""What TRL does: imported only by a run whose trainer is TRL, since trl and what it needs take seconds to load."""
