"""The Grafana dashboard is the one that the declared metrics make, and asks for what Ray's exporter is given."""

import json
import re
from pathlib import Path

from asyncrl.run.measures.declared_metrics import declared
from asyncrl.run.tracking.further_trackers import exported_name
from docs.pages.grafana import dashboard, main

FILE = Path(__file__).parents[2] / "docs" / "operations" / "grafana.json"


def test_the_dashboard_in_the_docs_is_that_of_the_metrics(tmp_path: Path):
    main([str(tmp_path / "grafana.json")])
    assert (tmp_path / "grafana.json").read_text() == FILE.read_text(), "run python -m docs.pages.grafana"


def test_each_metric_has_a_panel_that_finds_it_and_no_other():
    panels = [panel for panel in dashboard()["panels"] if panel["type"] == "timeseries"]
    assert sorted(panel["title"] for panel in panels) == sorted(metric.name for metric in declared())
    exported = {f"ray_{exported_name(metric.name)}" for metric in declared() if "<" not in metric.name}
    for panel in panels:
        (target,) = panel["targets"]
        named = re.search(r'__name__=~"([^"]+)"', target["expr"])
        assert named is not None
        found = [name for name in exported if re.fullmatch(named[1], name)]
        if "<" not in panel["title"]:
            assert found == [f"ray_{exported_name(panel['title'])}"]


def test_exported_names_are_prometheus_names_and_tell_metrics_apart():
    names = [exported_name(metric.name) for metric in declared()]
    assert len(set(names)) == len(names)
    plain = [name for metric, name in zip(declared(), names, strict=True) if "<" not in metric.name]
    assert all(re.fullmatch(r"[a-zA-Z_:][a-zA-Z0-9_:]*", name) for name in plain)


def test_panels_lie_side_by_side():
    places = [(each["gridPos"]["x"], each["gridPos"]["y"]) for each in dashboard()["panels"]]
    assert len(set(places)) == len(places)
    assert json.dumps(dashboard())
