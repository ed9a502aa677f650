"""The page of metrics says what the declarations say."""

from collections import Counter
from pathlib import Path

from asyncrl.cli.metrics_page import declared, is_declared, main, metrics_page

COMMITTED = Path(__file__).parents[2] / "docs" / "metrics.md"


def test_the_committed_page_is_current(tmp_path):
    main([str(tmp_path / "metrics.md")])
    assert (tmp_path / "metrics.md").read_text() == COMMITTED.read_text(), "run `python -m asyncrl.cli.metrics_page`"


def test_each_metric_is_declared_once_and_has_a_meaning():
    found = declared()
    assert [name for name, times in Counter(metric.name for metric in found).items() if times > 1] == []
    assert all(metric.unit and metric.meaning for metric in found)


def test_names_that_depend_on_the_run_are_found():
    for name in ("tool/look_up/seconds_p99", "environment/correct", "source/a.jsonl/environment/correct"):
        assert is_declared(name), name
    assert is_declared("staleness/tokens_at_12")
    assert is_declared("loss/clip_fraction_at_3_to_4")
    assert not is_declared("tool/look_up/seconds_p98")
    assert not is_declared("environment")


def test_idle_is_defined_once_for_each_side():
    text = metrics_page()
    assert "a *generator* is idle while no request runs in its engine or the engine is paused" in text
    assert "The *learner* is idle while it neither trains nor writes weights" in text
    assert "| `time/generators/tickets` | share | mean |" in text
