"""Questions about a scene with the query that answers them: right by construction, each in several wordings.

Where rows come in an order, it is a total one.
"""

from __future__ import annotations

# Each adds its templates as it is imported.
from halo_trainer.environments import sql_questions_hard as _hard  # noqa: F401
from halo_trainer.environments.sql_questions_easy import PAIRED
from halo_trainer.environments.sql_templates import TEMPLATES, Difficulty, Question

__all__ = ["PAIRED", "TEMPLATES", "Difficulty", "Question"]
