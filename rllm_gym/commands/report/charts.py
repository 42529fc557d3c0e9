"""Line charts as inline SVG: axes, curves and a legend, coloured by the page's style sheet."""

from __future__ import annotations

import html
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from rllm_gym.commands.report.escaping import as_text

WIDTH, HEIGHT = 640, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 14, 12, 30
_SMOOTH_FROM = 30
_MAX_POINTS = 1_000

Unit = Literal["number", "share", "small share"]


@dataclass(frozen=True, slots=True)
class Series:
    """One curve.

    Attributes:
        name: Its label.
        points: ``(step, value)``, steps ascending, all finite.
        measured_rarely: Drawn as dots joined by a line, unsmoothed; for validation.
    """

    name: str
    points: Sequence[tuple[float, float]]
    measured_rarely: bool = False


def line_chart(series: Sequence[Series], *, unit: Unit = "number", label: str = "") -> str:
    """Return an SVG element with all curves on common axes, or ``""`` if there is nothing to draw.

    Curves of thirty points or more are drawn twice: faintly unsmoothed, and smoothed (an exponential moving average
    whose span is a tenth of the curve).

    Args:
        series: At most eight have different colours.
        unit: ``"share"`` fixes the axis at 0..1 and prints percentages; ``"small share"`` prints percentages from 0 to
            the maximum.
        label: Text for screen readers.
    """
    series = [Series(one.name, _thin(one.points), one.measured_rarely) for one in series if one.points]
    if not series:
        return ""
    steps = [step for one in series for step, _ in one.points]
    values = [value for one in series for _, value in one.points]
    low_x, high_x = min(steps), max(steps)
    if unit == "share":
        ticks_y = [0.0, 0.25, 0.5, 0.75, 1.0]
    else:
        # Percentages start at 0 and reach at least 2, so that noise around zero does not look large.
        range_values = [0.0, 0.02] if unit == "small share" else []
        ticks_y = nice_ticks(min(values + range_values), max(values + range_values), 5)
    low_y, high_y = ticks_y[0], ticks_y[-1]
    span_x, span_y = (high_x - low_x) or 1.0, (high_y - low_y) or 1.0

    def x(step: float) -> float:
        return _LEFT + (step - low_x) / span_x * (WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _TOP + (high_y - value) / span_y * (HEIGHT - _TOP - _BOTTOM)

    parts = [
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{as_text(label)}" '
        f'data-chart="{html.escape(_hover_data(series, unit, low_x, span_x))}">'
    ]
    for tick in ticks_y:
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>')
        written = format_value(tick, unit)
        parts.append(f'<text class="tick" x="{_LEFT - 8}" y="{y(tick) + 3.5:.1f}" text-anchor="end">{written}</text>')
    ticks_x = [tick for tick in nice_ticks(low_x, high_x, 6) if low_x <= tick <= high_x]
    for tick in ticks_x:
        parts.append(f'<text class="tick" x="{x(tick):.1f}" y="{HEIGHT - 10}" text-anchor="middle">{tick:g}</text>')
    parts.append(
        f'<line class="axis" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{HEIGHT - _BOTTOM}" y2="{HEIGHT - _BOTTOM}"/>'
    )
    for index, one in enumerate(series):
        colour = f"c{index % 8}"
        smoothed = not one.measured_rarely and len(one.points) >= _SMOOTH_FROM
        if smoothed:
            parts.append(f'<path class="raw {colour}" d="{_path(one.points, x, y)}"/>')
        drawn = _smooth(one.points) if smoothed else one.points
        parts.append(f'<path class="curve {colour}" d="{_path(drawn, x, y)}"/>')
        if one.measured_rarely or len(one.points) == 1:
            parts += [f'<circle class="dot {colour}" cx="{x(s):.1f}" cy="{y(v):.1f}" r="3.4"/>' for s, v in one.points]
    parts.append('<line class="cursor" y1="12" y2="220" x1="0" x2="0" visibility="hidden"/></svg>')
    return "".join(parts)


def legend(series: Sequence[Series], unit: Unit) -> str:
    """Return the curves' names with their colours and last values."""
    rows = [
        f'<li><i class="key c{index % 8}"></i>{as_text(one.name)} <b>{format_value(_last(one), unit)}</b></li>'
        for index, one in enumerate(one for one in series if one.points)
    ]
    return f'<ul class="legend">{"".join(rows)}</ul>'


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


def format_value(value: float, unit: Unit = "number") -> str:
    """Format a number for people.

    >>> format_value(0.934, "share"), format_value(12345.6), format_value(0.00012)
    ('93%', '12.3k', '1.2e-4')
    """
    if unit == "share":
        return f"{100 * value:.0f}%"
    if unit == "small share":
        return f"{100 * value:.1f}%"
    size = abs(value)
    if size >= 1e6:
        return f"{value / 1e6:.3g}M"
    if size >= 1e4:
        return f"{value / 1e3:.3g}k"
    if 0 < size < 1e-3:
        mantissa, _, exponent = f"{value:.1e}".partition("e")
        return f"{mantissa.removesuffix('.0')}e{int(exponent)}"
    return f"{value:.3g}" if size < 1000 else f"{value:.0f}"


def _last(series: Series) -> float:
    points = series.points
    return (_smooth(points) if not series.measured_rarely and len(points) >= _SMOOTH_FROM else points)[-1][1]


def _smooth(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the exponential moving average with bias correction."""
    keep = 1 - 2 / (max(len(points) / 10, 3) + 1)
    total = weight = 0.0
    smoothed = []
    for step, value in points:
        total, weight = keep * total + (1 - keep) * value, keep * weight + (1 - keep)
        smoothed.append((step, total / weight))
    return smoothed


def _thin(points: Sequence[tuple[float, float]]) -> Sequence[tuple[float, float]]:
    """Return at most a thousand points, including the last one, so that the page of a long run stays small."""
    if len(points) <= _MAX_POINTS:
        return points
    stride = math.ceil(len(points) / _MAX_POINTS)
    return [*points[:-1:stride], points[-1]]


def _path(points: Sequence[tuple[float, float]], x: Callable[[float], float], y: Callable[[float], float]) -> str:
    return "M" + "L".join(f"{x(step):.1f},{y(value):.1f}" for step, value in points)


def _hover_data(series: Sequence[Series], unit: Unit, low_x: float, span_x: float) -> str:
    """Return the data that the page's script needs to show values under the pointer."""
    return json.dumps(
        {
            "unit": unit,
            "left": _LEFT,
            "right": WIDTH - _RIGHT,
            "low": low_x,
            "span": span_x,
            "series": [
                {"name": one.name, "points": [[step, float(f"{value:.4g}")] for step, value in one.points]}
                for one in series
            ],
        },
        separators=(",", ":"),
    )
