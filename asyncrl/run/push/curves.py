"""Draws the curves of reward and evaluation as one SVG file, which loads nothing and looks alike on light and dark pages."""

from collections.abc import Sequence
from xml.etree.ElementTree import TreeBuilder, tostring

from asyncrl.run.measures import metrics
from asyncrl.run.report.curves import span_of
from asyncrl.run.report.figures import SIZE, Chart, Curve, chart, number
from asyncrl.run.report.run_record import RunRecord

FILE = "curves.svg"
_SHOWN = ((metrics.REWARD, "reward in training"), (metrics.EVALUATION_REWARD, "reward on held-out tasks"))
_WIDTH, _HEIGHT = 460, 240
"""Of one chart, with its numbers."""
_LEFT, _TOP, _PLOT_WIDTH, _PLOT_HEIGHT = 52, 34, 390, 168
_INK, _FAINT, _LINE = "#1f2937", "#d1d5db", "#2563eb"


def curves_svg(run: RunRecord) -> bytes | None:
    """Return the curves as SVG, one chart beside the other; None if the run has neither metric."""
    charts = [
        chart(title, [Curve.of(run.name, series, 0)], span_of([run]))
        for metric, title in _SHOWN
        if (series := run.series(metric.name)) is not None
    ]
    return _svg(charts) if charts else None


def _svg(charts: Sequence[Chart]) -> bytes:
    width = _WIDTH * len(charts)
    size = {"viewBox": f"0 0 {width} {_HEIGHT}", "width": f"{width}"}
    letters = {"font-family": "system-ui, sans-serif", "font-size": "12", "fill": _INK}
    drawing = TreeBuilder()
    drawing.start("svg", {"xmlns": "http://www.w3.org/2000/svg", **size, **letters})
    _add(drawing, "title", {}, " and ".join(each.title for each in charts))
    _add(drawing, "rect", {"width": f"{width}", "height": f"{_HEIGHT}", "fill": "#ffffff"})
    for place, each in enumerate(charts):
        drawing.start("g", {"transform": f"translate({place * _WIDTH} 0)"})
        _draw(drawing, each)
        drawing.end("g")
    drawing.end("svg")
    return tostring(drawing.close(), encoding="unicode").encode()


def _draw(drawing: TreeBuilder, chart_: Chart) -> None:
    (line,) = chart_.lines
    _text(drawing, _LEFT, 20, f"{chart_.title}: {line.last} at last", weight="600")
    for tick in chart_.ticks:
        y = _TOP + _PLOT_HEIGHT * (1 - tick.at / 100)
        _add(drawing, "path", {"d": f"M{_LEFT},{y:.1f}h{_PLOT_WIDTH}", "stroke": _FAINT})
        _text(drawing, _LEFT - 6, y + 4, tick.label, anchor="end")
    below = _TOP + _PLOT_HEIGHT + 18
    _text(drawing, _LEFT, below, number(chart_.first))
    _text(drawing, _LEFT + _PLOT_WIDTH / 2, below, chart_.across, anchor="middle")
    _text(drawing, _LEFT + _PLOT_WIDTH, below, number(chart_.last), anchor="end")
    box = {"x": f"{_LEFT}", "y": f"{_TOP}", "width": f"{_PLOT_WIDTH}", "height": f"{_PLOT_HEIGHT}"}
    stretched = {"viewBox": f"0 0 {SIZE} {SIZE}", "preserveAspectRatio": "none", "overflow": "visible"}
    pen = {"fill": "none", "stroke": _LINE, "stroke-linejoin": "round", "stroke-linecap": "round"}
    drawn = {"vector-effect": "non-scaling-stroke"}
    drawing.start("svg", box | stretched | pen)
    _add(drawing, "polyline", drawn | {"points": line.points, "opacity": "0.35" if line.smooth else "1"})
    if line.smooth:
        _add(drawing, "polyline", drawn | {"points": line.smooth, "stroke-width": "2"})
    if line.dots:
        _add(drawing, "path", drawn | {"d": line.dots, "stroke-width": "5"})
    drawing.end("svg")


def _text(drawing: TreeBuilder, x: float, y: float, text: str, anchor: str = "start", weight: str = "400") -> None:
    _add(drawing, "text", {"x": f"{x:.1f}", "y": f"{y:.1f}", "text-anchor": anchor, "font-weight": weight}, text)


def _add(drawing: TreeBuilder, tag: str, attributes: dict[str, str], text: str = "") -> None:
    drawing.start(tag, attributes)
    drawing.data(text)
    drawing.end(tag)
