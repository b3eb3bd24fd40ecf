"""The losses of both sides over each other, a chart a case."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any


def drawn(cases: Sequence[dict[str, Any]]) -> bytes:
    """Return the SVG of the measured cases, as they stand in the bench's last line; the same bytes for the same losses."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    with matplotlib.rc_context({"svg.hashsalt": "halo", "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(5.2 * len(cases), 3.2), layout="constrained")
        for case, axes in zip(cases, figure.subplots(1, len(cases), squeeze=False).flat, strict=True):
            ours, theirs = zip(*case["losses"], strict=True)
            steps = range(1, len(ours) + 1)
            # The one below is the broader, so that both are seen where they are the same.
            axes.plot(steps, theirs, "C1", lw=5, alpha=0.5, label=case["theirs"])
            axes.plot(steps, ours, "C0", lw=1.2, marker="o", ms=3, label=case["ours"])
            axes.set(
                title=f"{case['case']}: at most {case['loss_max_difference']:.1e} apart", xlabel="step", ylabel="loss"
            )
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.grid(alpha=0.25)
            axes.legend(frameon=False)
        picture = io.BytesIO()
        figure.savefig(picture, format="svg", metadata={"Date": None})
    return picture.getvalue()
