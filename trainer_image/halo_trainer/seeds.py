"""The seed contract: one seed decides data order, adapter initialisation and dropout, each by a stream of its own."""

from __future__ import annotations

import hashlib


def derived_seed(seed: int, *purpose: str | int) -> int:
    """Return a 63-bit seed for one purpose; the streams of two purposes, steps or ranks have nothing in common.

    Dropout is seeded for each (step, rank) anew. So a resumed run draws what the straight run drew with no generator
    state to keep, and a change to one stream (more data, say) moves no other.
    """
    text = "/".join(("halo", str(seed), *map(str, purpose)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1
