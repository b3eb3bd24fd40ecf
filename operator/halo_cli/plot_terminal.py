"""Curves on a terminal, in braille dots by plotille: one chart a metric, below each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from halo_cli.plot_series import Metric, Panel, averaged

HEIGHT = 9
# What plotille puts left of its canvas, and a canvas that still shows something.
MARGIN, NARROWEST, WIDEST = 23, 20, 120
DOTS_A_COLUMN = 2
# Points from one letter of a curve to the next.
APART = 20
COLOURS = ("blue", "red", "green", "magenta", "cyan", "yellow")


def drawn(panels: Sequence[Panel], columns: int, coloured: bool) -> str:
    """Return the charts for a terminal of that many columns.

    Without colours several curves are told apart by their letters, at every few points.
    """
    return "\n\n".join(chart(panel, columns, coloured) for panel in panels)


def chart(panel: Panel, columns: int, coloured: bool) -> str:
    """Return one chart: its title, the canvas with its axes, and which curve is whose."""
    import plotille

    figure = plotille.Figure()
    figure.width, figure.height = min(max(columns - MARGIN, NARROWEST), WIDEST), HEIGHT
    figure.with_colors, figure.color_mode, figure.origin = coloured, "names", False
    figure.x_label = "step"
    figure.x_ticks_fkt = whole
    figure.y_ticks_fkt = lambda value, _: panel.metric.shown.format(value).rjust(10)
    steps = [point.step for points in panel.curves.values() for point in points]
    values = [point.value for points in panel.curves.values() for point in points]
    figure.set_x_limits(*spread(min(steps), max(steps)))
    figure.set_y_limits(*spread(min(values), max(values)))
    names = []
    for number, (run, points) in enumerate(panel.curves.items()):
        shown = averaged(points, DOTS_A_COLUMN * figure.width)
        letter = None if coloured or len(panel.curves) == 1 else chr(ord("a") + number % 26)
        colour = COLOURS[number % len(COLOURS)]
        figure.plot([p.step for p in shown], [p.value for p in shown], lc=colour if coloured else None)
        if letter:
            marked = shown[number * APART // 2 % len(shown) :: APART]
            figure.scatter([p.step for p in marked], [p.value for p in marked], marker=letter)
        key: Any = plotille.color("━━", fg=colour) if coloured else letter
        names.append(f"{key} {run}")
    # The first line would name the axis.
    return "\n".join([title(panel.metric, names), *figure.show().splitlines()[1:]])


def title(metric: Metric, names: Sequence[str]) -> str:
    """Return the line above a chart."""
    return "   ".join([metric.title, *(names if len(names) > 1 else [])])


def whole(step: float, following: float) -> str:
    """Return what stands at a place of the axis: a step, unless the place before it is of the same one."""
    return "" if round(2 * step - following) == round(step) else f"{step:.0f}"


def spread(low: float, high: float) -> tuple[float, float]:
    """Return limits that are apart: a curve of one value has a chart too."""
    # Closer than that, and the dots between them are the same number.
    if high - low > max(1e-12 * abs(high), 1e-300):
        return low, high
    around = abs(low) / 10 or 1.0
    return low - around, high + around
