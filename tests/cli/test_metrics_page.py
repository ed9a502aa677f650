"""The page of metrics says what the declarations say."""

from collections import Counter
from pathlib import Path

from asyncrl.run.measures.declared_metrics import declared
from docs.pages.metrics import main, metrics_page

COMMITTED = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"


def test_the_committed_page_is_current(tmp_path):
    main([str(tmp_path / "metrics.md")])
    assert (tmp_path / "metrics.md").read_text() == COMMITTED.read_text(), "run `python -m docs.pages.metrics`"


def test_each_metric_is_declared_once_and_has_a_meaning():
    found = declared()
    assert [name for name, times in Counter(metric.name for metric in found).items() if times > 1] == []
    assert all(metric.unit and metric.meaning for metric in found)


def test_idle_is_defined_once_for_each_side():
    text = metrics_page()
    assert "a *generator* is idle while no request runs in its engine or the engine is paused" in text
    assert "The *learner* is idle while it neither trains nor writes weights" in text
    assert "| `time/generators/tickets` | share | mean |" in text
