"""The facts that decide whether a TrainingJob is accepted: one check a fact, a file a subject; `admission.py` has their order."""
