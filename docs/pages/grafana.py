"""Writes the Grafana dashboard of a run's metrics, from where they are declared: ``python -m docs.pages.grafana``."""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from asyncrl.core.measures.metrics import Metric
from asyncrl.run.measures.declared_metrics import declared
from asyncrl.run.tracking.further_trackers import exported_name

_WIDTH, _HEIGHT, _ACROSS = 8, 7, 3
"""The size of a panel in Grafana's grid, and how many stand side by side."""
_UNITS = {"s": "s", "bytes": "bytes", "share": "percentunit", "%": "percent"}


def dashboard() -> dict[str, Any]:
    """The dashboard, as Grafana reads it: a row for each beginning of names, and a panel for each metric."""
    by_row: dict[str, list[Metric]] = {}
    for metric in declared():
        by_row.setdefault(metric.name.partition("/")[0], []).append(metric)
    panels: list[dict[str, Any]] = []
    top = 0
    for title, metrics in by_row.items():
        panels.append({"type": "row", "title": title, "collapsed": False, "gridPos": {"x": 0, "y": top, "w": 24, "h": 1}})
        top += 1
        for place, metric in enumerate(metrics):
            panels.append(_panel(metric, place % _ACROSS * _WIDTH, top + place // _ACROSS * _HEIGHT))
        top += -(-len(metrics) // _ACROSS) * _HEIGHT
    for number, panel in enumerate(panels, 1):
        panel["id"] = number
    source = {"name": "source", "label": "Prometheus", "type": "datasource", "query": "prometheus"}
    step = f"ray_{exported_name('training step')}"
    runs = {
        "name": "run",
        "label": "Run",
        "type": "query",
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "query": f"label_values({step}, run)",
        "refresh": 2,
        "multi": True,
        "includeAll": True,
    }
    return {
        "title": "asyncrl",
        "uid": "asyncrl",
        "schemaVersion": 39,
        "time": {"from": "now-6h", "to": "now"},
        "refresh": "30s",
        "templating": {"list": [source, runs]},
        "panels": panels,
    }


def _panel(metric: Metric, left: int, top: int) -> dict[str, Any]:
    name = "".join(".+" if part.startswith("<") else exported_name(part)[len("asyncrl_") :] for part in _parts(metric.name))
    return {
        "type": "timeseries",
        "title": metric.name,
        "description": f"{metric.meaning} ({metric.unit})",
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "gridPos": {"x": left, "y": top, "w": _WIDTH, "h": _HEIGHT},
        "fieldConfig": {"defaults": {"unit": _UNITS.get(metric.unit, "short")}, "overrides": []},
        "targets": [
            {
                "refId": "A",
                "expr": f'{{__name__=~"ray_asyncrl_{name}", run=~"$run"}}',
                "legendFormat": "{{run}}" if "<" not in metric.name else "{{__name__}} {{run}}",
            }
        ],
    }


def _parts(name: str) -> list[str]:
    return re.split("(<[^>]+>)", name)


def main(argv: Sequence[str]) -> None:
    """Write the dashboard to the file named, by default docs/operations/grafana.json of the checkout."""
    parser = argparse.ArgumentParser(description="Write the Grafana dashboard.")
    parser.add_argument("file", nargs="?", type=Path, default=Path("docs/operations/grafana.json"))
    parser.parse_args(argv).file.write_text(json.dumps(dashboard(), indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
