"""A recorded name leads to its declaration."""

import ast
from collections import Counter
from pathlib import Path

import pytest

from asyncrl.core.measures import time_split
from asyncrl.core.measures.metrics import Metric
from asyncrl.learners import metrics as learner_metrics
from asyncrl.run.measures import episode_metrics, metrics
from asyncrl.run.measures.declared_metrics import declared, metric_called


@pytest.mark.parametrize(
    ("name", "unit", "meaning"),
    [
        ("reward/mean", "reward", "mean final reward"),
        ("reward/correct", "reward", "`correct`, a part of the reward"),
        ("environment/correct", "1", "`correct`, which the environment reports"),
        ("source/a.jsonl/environment/correct", "1", "episodes of `a.jsonl`"),
        ("tool/look_up/seconds_p99", "s", "how long a call of `look_up` took"),
        ("tool/easy.look_up/calls", "calls", "calls that reached `easy.look_up`"),
        ("latency/queue_p50", "s", "how long an episode waited"),
        ("staleness/tokens_at_12", "tokens", "12"),
        ("loss/clip_fraction_at_3_to_4", "1", "tokens of staleness 3_to_4"),
    ],
)
def test_a_name_leads_to_its_unit_and_to_what_it_means_there(name: str, unit: str, meaning: str):
    metric = metric_called(name)
    assert metric is not None
    assert (metric.name, metric.unit) == (name, unit)
    assert meaning in metric.meaning


@pytest.mark.parametrize("name", ["tool/look_up/seconds_p98", "environment", "reward/a/b", ""])
def test_other_names_lead_nowhere(name: str):
    assert metric_called(name) is None


def test_a_metric_whose_name_is_always_the_same_is_found_as_it_was_declared():
    fixed = [metric for metric in declared() if "<" not in metric.name]
    assert fixed == [metric_called(metric.name) for metric in fixed]
    assert all(isinstance(metric, Metric) for metric in fixed)


def test_a_metric_s_name_is_written_once_and_only_where_it_is_declared():
    root = Path(__file__).resolve().parents[3]
    declaring = {Path(module.__file__).resolve() for module in (learner_metrics, metrics, episode_metrics, time_split)}
    written, elsewhere = Counter(), []
    for file in (
        file for folder in ("asyncrl", "buffers", "generators", "learners", "docs") for file in (root / folder).rglob("*.py")
    ):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and metric_called(node.value):
                written[node.value] += 1
                elsewhere += [] if file in declaring else [f"{file}:{node.lineno} {node.value}"]
    assert elsewhere == [], "use the name of the declared metric"
    assert len(written) > 50
    assert set(written.values()) == {1}
