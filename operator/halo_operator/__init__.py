"""The operator: watches → queue → reconcile → pure plan → apply → one status write."""

__version__ = "0.1.0"
