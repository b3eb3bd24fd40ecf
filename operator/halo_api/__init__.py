"""The words of Halo: resource types, run file and report, shared by every other package; no I/O here."""

GROUP = "halo.training"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
