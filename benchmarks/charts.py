"""Line charts as inline SVG, for the pictures of results: axes and curves, coloured by the picture's style sheet."""

from __future__ import annotations

import html
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_WIDTH, _HEIGHT = 640, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 14, 12, 30


@dataclass(frozen=True, slots=True)
class Series:
    """One curve: its name, and its points ``(x, y)``, x ascending, all finite."""

    name: str
    points: Sequence[tuple[float, float]]


def line_chart(series: Sequence[Series], *, share: bool = False, label: str = "") -> str:
    """Return an SVG element with all curves on common axes, or ``""`` if there is nothing to draw.

    Args:
        series: The curve with index i has the class ``c<i>``.
        share: The axis is from 0 to 100 %.
        label: Text for screen readers.
    """
    series = [one for one in series if one.points]
    if not series:
        return ""
    steps = [step for one in series for step, _ in one.points]
    values = [value for one in series for _, value in one.points]
    low_x, high_x = min(steps), max(steps)
    ticks_y = [0.0, 0.25, 0.5, 0.75, 1.0] if share else nice_ticks(min(values), max(values), 5)
    low_y, high_y = ticks_y[0], ticks_y[-1]
    span_x, span_y = (high_x - low_x) or 1.0, (high_y - low_y) or 1.0

    def x(step: float) -> float:
        return _LEFT + (step - low_x) / span_x * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _TOP + (high_y - value) / span_y * (_HEIGHT - _TOP - _BOTTOM)

    parts = [f'<svg class="chart" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{html.escape(label)}">']
    for tick in ticks_y:
        written = f"{100 * tick:.0f}%" if share else f"{tick:.3g}"
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 8}" y="{y(tick) + 3.5:.1f}" text-anchor="end">{written}</text>')
    for tick in (tick for tick in nice_ticks(low_x, high_x, 6) if low_x <= tick <= high_x):
        parts.append(f'<text class="tick" x="{x(tick):.1f}" y="{_HEIGHT - 10}" text-anchor="middle">{tick:g}</text>')
    bottom = _HEIGHT - _BOTTOM
    parts.append(f'<line class="axis" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{bottom}" y2="{bottom}"/>')
    for index, one in enumerate(series):
        parts.append(f'<path class="curve c{index}" d="{_path(one.points, x, y)}"/>')
        parts += [f'<circle class="dot c{index}" cx="{x(s):.1f}" cy="{y(v):.1f}" r="3.4"/>' for s, v in one.points]
    return "".join([*parts, "</svg>"])


def nice_ticks(low: float, high: float, count: int) -> list[float]:
    """Return about ``count`` round numbers that cover ``low..high``.

    >>> nice_ticks(0.03, 0.94, 5)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    >>> nice_ticks(3, 3, 5)
    [2.0, 2.5, 3.0, 3.5, 4.0]
    """
    size = max(abs(low), abs(high))
    if not high - low > 1e-9 * max(size, 1e-9):
        # Treated as one value: between numbers this close there are none with few digits.
        margin = size / 3 if size > 1e-9 else 1.0
        low, high = low - margin, high + margin
    rough = (high - low) / max(count - 1, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * 0.85)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    digits = max(0, 2 - math.floor(math.log10(step)))
    return [round(index * step, digits) + 0.0 for index in range(first, last + 1)]


def _path(points: Sequence[tuple[float, float]], x: Callable[[float], float], y: Callable[[float], float]) -> str:
    return "M" + "L".join(f"{x(step):.1f},{y(value):.1f}" for step, value in points)
