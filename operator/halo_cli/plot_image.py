"""Curves as a picture, SVG or PNG, by matplotlib: one chart a metric, two in a row, with the same bytes for the same steps."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence

from halo_api.metrics_history import StepMetrics
from halo_cli.plot_series import Panel, averaged, began

COLUMNS = 2
WIDE, HIGH = 6.4, 3.2
MOST_POINTS = 2000
# Up to so many points one can see each.
FEW_POINTS = 30


def drawn(panels: Sequence[Panel], runs: Mapping[str, Sequence[StepMetrics]], form: str) -> bytes:
    """Return the picture; `form` is svg or png. Of a lone run a dotted line stands where an attempt took over."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    columns = min(COLUMNS, len(panels))
    rows = -(-len(panels) // columns)
    with matplotlib.rc_context({"svg.hashsalt": "halo", "axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(figsize=(WIDE * columns, HIGH * rows), layout="constrained")
        places = figure.subplots(rows, columns, squeeze=False).flat
        for panel, axes in zip(panels, places, strict=False):
            for number, run in enumerate(runs):
                points = averaged(panel.curves.get(run, ()), MOST_POINTS)
                mark = "o" if 0 < len(points) <= FEW_POINTS else None
                axes.plot(
                    [p.step for p in points],
                    [p.value for p in points],
                    f"C{number}",
                    lw=1.2,
                    marker=mark,
                    ms=3,
                    label=run,
                )
            for _, step in began(next(iter(runs.values()))) if len(runs) == 1 else ():
                axes.axvline(step, color="0.6", lw=0.8, ls=":")
            axes.set(title=panel.metric.title, xlabel="step")
            axes.yaxis.set_major_formatter(panel.metric.shown.format)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            axes.grid(alpha=0.25)
        for axes in places:
            axes.set_axis_off()
        curves = figure.axes[0].get_lines()[: len(runs)]
        figure.legend(curves, list(runs), loc="outside upper center", ncols=COLUMNS, frameon=False)
        picture = io.BytesIO()
        figure.savefig(picture, format=form, dpi=150, metadata={"Date": None} if form == "svg" else {"Software": None})
    return picture.getvalue()
