"""Makes figures of numbers: lines, bands that add up to a whole, and bars, as coordinates for SVG.

What always holds: both axes go from 0 to :data:`SIZE`, the y axis downwards, so that a figure takes any shape on the page; its
numbers are written beside it by the page. A long series is thinned by means, so that a figure has a bounded size.
"""

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Self

import msgspec
import numpy as np

from asyncrl.run.tracking.metric_history import Series

STEPS = "training step"
"""What charts go over, unless they say something else."""
SIZE = 10_000
DOTS = 40
"""A curve of at most so many points has a dot at each; one of more has its running means drawn over it."""
WINDOW = 20
"""Running means are over this part of a curve."""
COLOURS = 8
"""How many colours the page has; a figure with more lines repeats them."""
_LARGEST = 1e300
"""Sizes beyond this and below its inverse are drawn as the limit and as 0."""


class Tick(msgspec.Struct, frozen=True):
    """A number on an axis, where it is in percent of its length."""

    at: float
    label: str


class Curve(msgspec.Struct, frozen=True, kw_only=True):
    """What a chart draws of one run, or of one setting of several.

    Attributes:
        x, y: its points; at least one, and ``x`` ascends.
        colour: the number of its colour.
        parts: the points of curves that this one is the mean of, which are drawn faint behind it.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    colour: int
    dashed: bool = False
    parts: tuple[tuple[Sequence[float], Sequence[float]], ...] = ()

    @classmethod
    def of(cls, name: str, series: Series, colour: int, *, dashed: bool = False) -> Self:
        """The curve of a metric over training steps."""
        return cls(name=name, x=series.steps, y=series.values, colour=colour, dashed=dashed)


class Line(msgspec.Struct, frozen=True):
    """One curve. ``points`` as ``x,y x,y``; ``last`` is its last value.

    Attributes:
        parts: the points of each curve that this one is the mean of, in the same form.
        smooth: running means of a curve of many points, in the same form; empty for one of few.
        dots: the points of a curve of few, each a line of no length, as a path; empty for one of many.
    """

    name: str
    colour: int
    points: str
    last: str
    dashed: bool = False
    smooth: str = ""
    dots: str = ""
    parts: tuple[str, ...] = ()


class Chart(msgspec.Struct, frozen=True):
    """Curves over training steps, or over something else.

    Attributes:
        first, last: the numbers at both ends of the x axis.
        low, high: the values at both ends of the y axis.
        across: what the x axis shows.
    """

    title: str
    unit: str
    meaning: str
    lines: tuple[Line, ...]
    ticks: tuple[Tick, ...]
    first: float
    last: float
    low: float
    high: float
    across: str = STEPS


class Band(msgspec.Struct, frozen=True):
    """One part of a whole over time.

    Attributes:
        strength: how strong its colour is, in [0, 1].
        shares: its per mille at each of the timeline's steps.
    """

    name: str
    colour: int
    strength: float
    waits: bool
    points: str
    shares: str
    mean: float


class Timeline(msgspec.Struct, frozen=True):
    """Parts of a whole, one upon the other, over training steps."""

    title: str
    meaning: str
    bands: tuple[Band, ...]
    steps: str
    first: int
    last: int


class Bar(msgspec.Struct, frozen=True):
    """One bar of a histogram, in percent of width and height."""

    left: float
    width: float
    height: float
    label: str


class Histogram(msgspec.Struct, frozen=True):
    """Bars side by side; ``first`` and ``last`` are the numbers at both ends."""

    title: str
    unit: str
    bars: tuple[Bar, ...]
    first: str
    last: str
    median: str


def number(value: float) -> str:
    """Return a number as people read it: ``0.0123``, ``12.3``, ``45.6k``, ``1.2M`` or ``3e-05``."""
    value, size = value or 0.0, abs(value)  # no minus before 0
    for least, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= least:
            return f"{value / {'G': 1e9, 'M': 1e6, 'k': 1e3}[letter]:.3g}{letter}"
    if float(value).is_integer():
        return f"{value:,.0f}"
    return f"{value:.4g}" if size >= 1000 else f"{value:.3g}"


def chart(
    title: str,
    curves: Sequence[Curve],
    span: tuple[float, float],
    *,
    unit: str = "",
    meaning: str = "",
    points: int = 300,
    across: str = STEPS,
) -> Chart:
    """Draw curves over the numbers of ``span``.

    Args:
        points: how many points a curve has at most.
        across: what ``span`` and the ``x`` of curves are.
    """
    thinned = [_thinned(curve.x, _drawable(curve.y), points) for curve in curves]
    parts = [[_thinned(x, _drawable(y), points) for x, y in curve.parts] for curve in curves]
    low, high = _range(np.concatenate([y for _, y in [*thinned, *(part for each in parts for part in each)]]))

    def height(values: np.ndarray) -> np.ndarray:
        return _up((values - low) / (high - low))

    def line(curve: Curve, own: tuple[np.ndarray, np.ndarray], behind: Sequence[tuple[np.ndarray, np.ndarray]]) -> Line:
        x, y = _across(own[0], span), height(own[1])
        many = len(x) > DOTS
        return Line(
            curve.name,
            curve.colour % COLOURS,
            _points(x, y),
            number(float(curve.y[-1])),
            curve.dashed,
            smooth=_points(x, height(_running_means(own[1]))) if many else "",
            dots="" if many else _dots(x, y),
            parts=tuple(_points(_across(a, span), height(b)) for a, b in behind),
        )

    lines = tuple(map(line, curves, thinned, parts))
    return Chart(title, unit, meaning, lines, ticks(low, high), *span, low, high, across)


def ticks(low: float, high: float) -> tuple[Tick, ...]:
    """Return the round numbers on an axis."""
    return tuple(Tick(round((value - low) / (high - low) * 100, 2), number(value)) for value in _round_values(low, high))


def timeline(
    title: str,
    parts: Mapping[str, Series],
    span: tuple[int, int],
    *,
    meaning: str = "",
    waits: Sequence[str] = (),
    ordered: bool = False,
    points: int = 240,
) -> Timeline:
    """Draw parts of a whole one upon the other, at the steps that the first of them has. A part without a value there is 0.

    Args:
        parts: shares in [0, 1], by name, the lowest first.
        waits: the parts that are no work, which are drawn in grey.
        ordered: the names are a scale, so that the parts have one colour, the stronger the later.
    """
    first = next(iter(parts.values()))
    at = {name: dict(zip(each.steps, each.values, strict=True)) for name, each in parts.items()}
    thinned = {
        name: _thinned(first.steps, [min(max(values.get(step, 0.0), 0.0), 1.0) for step in first.steps], points)
        for name, values in at.items()
    }
    steps = next(iter(thinned.values()))[0]
    bands: list[Band] = []
    below = np.zeros(len(steps))
    x = _across(steps, span)
    working = 0
    for name, (_, values) in thinned.items():
        above = below + values
        outline = _points(np.concatenate([x, x[::-1]]), _up(np.concatenate([above, below[::-1]])))
        shares = ",".join(str(round(value * 1000)) for value in values)
        colour, strength = (0, 0.15 + 0.8 * (len(bands) + 1) / len(thinned)) if ordered else (working % COLOURS, 0.75)
        if name in waits:
            strength = max(0.3, 1 - 0.3 * sum(band.waits for band in bands))
        bands.append(Band(name, colour, strength, name in waits, outline, shares, float(np.mean(values))))
        working += name not in waits
        below = above
    return Timeline(title, meaning, tuple(bands), ",".join(f"{step:.0f}" for step in steps), *span)


def histogram(title: str, values: np.ndarray, *, unit: str, bins: int = 24) -> Histogram:
    """Draw how often values lie where; a bin is a whole number wide. ``values`` are whole numbers, at least one."""
    low, high = int(values.min()), int(values.max())
    width = max(1, math.ceil((high - low + 1) / bins))
    edges = np.arange(low, high + width + 1, width)
    counts, _ = np.histogram(values, edges)
    bars = tuple(
        Bar(
            round(place / len(counts) * 100, 3),
            round(100 / len(counts), 3),
            round(count / counts.max() * 100, 2),
            f"{start:,} to {end - 1:,}: {count:,}" if width > 1 else f"{start:,}: {count:,}",
        )
        for place, (count, (start, end)) in enumerate(zip(counts.tolist(), pairwise(edges.tolist()), strict=True))
    )
    return Histogram(title, unit, bars, f"{low:,}", f"{high:,}", f"{float(np.median(values)):,.0f}")


def _drawable(values: Sequence[float]) -> np.ndarray:
    """The values as far as an axis can be computed for them: what is near the ends of a float's range becomes 0 or the end."""
    array = np.asarray(values, np.float64)
    return np.where(np.abs(array) < 1 / _LARGEST, 0.0, np.clip(array, -_LARGEST, _LARGEST))


def _thinned(steps: Sequence[float], values: Sequence[float] | np.ndarray, points: int) -> tuple[np.ndarray, np.ndarray]:
    x, y = np.asarray(steps, np.float64), np.asarray(values, np.float64)
    if len(x) <= points:
        return x, y
    parts = np.linspace(0, len(x), points + 1).astype(int)[:-1]
    counts = np.diff(parts, append=len(x))
    return np.add.reduceat(x, parts) / counts, np.add.reduceat(y, parts) / counts


def _range(values: np.ndarray) -> tuple[float, float]:
    """Both ends of an axis that shows all values; it begins at 0 where that costs little."""
    low, high = float(values.min()), float(values.max())
    if high - low <= 0.002 * max(abs(low), abs(high)):  # what differs less looks the same in the numbers on the axis
        spread = max(abs(low), abs(high)) * 0.1
        return (low - spread, high + spread) if high or low else (0.0, 1.0)
    if 0 <= low < 0.6 * high:
        return 0.0, high * 1.04
    if 0.6 * low < high <= 0:
        return low * 1.04, 0.0
    margin = (high - low) * 0.05
    return low - margin, high + margin


def _round_values(low: float, high: float) -> list[float]:
    """Three to six round numbers between two numbers."""
    rough = (high - low) / 4
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = min((factor * magnitude for factor in (1, 2, 2.5, 5, 10)), key=lambda each: abs(math.log(each / rough)))
    first = math.ceil(low / step)
    return [n * step for n in range(first, math.floor(high / step) + 1)]


def _across(steps: np.ndarray, span: tuple[float, float]) -> np.ndarray:
    return (steps - span[0]) / ((span[1] - span[0]) or 1) * SIZE


def _up(shares: np.ndarray) -> np.ndarray:
    return (1 - shares) * SIZE


def _running_means(values: np.ndarray) -> np.ndarray:
    """Return for each value the mean of those around it: a :data:`WINDOW`-th of all, fewer at both ends."""
    reach = max(1, len(values) // WINDOW // 2)
    sums = np.concatenate([[0.0], np.cumsum(values)])
    places = np.arange(len(values))
    reaches = np.minimum(reach, np.minimum(places, places[::-1]))
    means: np.ndarray = (sums[places + reaches + 1] - sums[places - reaches]) / (2 * reaches + 1)
    return means


def _dots(x: np.ndarray, y: np.ndarray) -> str:
    return "".join(f"M{a:.0f},{b:.0f}h0" for a, b in zip(x, np.clip(y, 0, SIZE), strict=True))


def _points(x: np.ndarray, y: np.ndarray) -> str:
    places = [f"{a:.0f},{b:.0f}" for a, b in zip(x, np.clip(y, 0, SIZE), strict=True)]
    return " ".join(places if len(places) > 1 else places * 2)  # a line of no length is drawn as a dot, a single point is not
