"""Every metric that a run can record, and which of them a recorded name is."""

import re
from collections.abc import Iterator
from functools import cache
from types import ModuleType

from asyncrl.core.measures import time_split
from asyncrl.core.measures.metrics import Metric
from asyncrl.learners import metrics as learner_metrics
from asyncrl.run.measures import episode_metrics, metrics

_DEPENDS = r"(<[^>]+>)"
"""The part of a declared name that depends on the run."""


def declared() -> list[Metric]:
    """Every metric that a run can record; a part of a name that depends on the run stands in angle brackets."""
    source, member, metric, tool = "<source>", "<member>", "<metric>", "<tool>"
    return [
        *_in_module(metrics),
        _with("7", "<k>", metrics.evaluation_pass(7)),
        *_in_module(time_split),
        *_in_module(episode_metrics),
        *_in_module(learner_metrics),
        episode_metrics.reward_metric("<part>"),
        episode_metrics.environment_metric(metric),
        *episode_metrics.source_metrics(source).values(),
        episode_metrics.source_environment_metric(source, metric),
        *episode_metrics.member_metrics(member).values(),
        episode_metrics.member_environment_metric(member, metric),
        metrics.evaluation_of(member),
        metrics.generated_by("<pool>"),
        time_split.idle_in_pool("<pool>"),
        *episode_metrics.tool_metrics(tool).values(),
        _with("0", "<staleness>", learner_metrics.tokens_at(0)),
        *(
            _with("3_to_4", "<staleness>", learner_metrics.by_staleness(of, 3, 4))
            for of in (
                learner_metrics.CLIP_FRACTION,
                learner_metrics.RATIO_MEAN,
                learner_metrics.BEHAVIOUR_K3,
                learner_metrics.BEHAVIOUR_GAP,
            )
        ),
    ]


def _in_module(module: ModuleType) -> Iterator[Metric]:
    """The metrics of a module, in their order; also those in its dictionaries."""
    for value in vars(module).values():
        yield from _in(value)


def _in(value: object) -> Iterator[Metric]:
    if isinstance(value, Metric):
        yield value
    elif isinstance(value, dict):
        for entry in value.values():
            yield from _in(entry)


def _with(example: str, stands: str, metric: Metric) -> Metric:
    """A metric of a staleness, for any staleness."""
    return Metric(metric.name.replace(example, stands), metric.unit, metric.reduction, metric.meaning.replace(example, stands))


def metric_called(name: str) -> Metric | None:
    """Return the metric that a run records as ``name``; None if this version records no such metric.

    What stands in angle brackets in its declaration is in its meaning what the name has there.
    """
    for pattern, metric in _patterns():
        if found := pattern.fullmatch(name):
            meaning = metric.meaning
            for stands, part in zip(re.findall(_DEPENDS, metric.name), found.groups(), strict=True):
                meaning = meaning.replace(stands, part)
            return Metric(name, metric.unit, metric.reduction, meaning)
    return None


@cache
def _patterns() -> tuple[tuple[re.Pattern[str], Metric], ...]:
    """Patterns of the names of each declared metric, those that do not depend on the run first."""
    found = sorted(declared(), key=lambda metric: len(re.findall(_DEPENDS, metric.name)))
    return tuple((re.compile(_pattern(metric.name)), metric) for metric in found)


def _pattern(name: str) -> str:
    return "".join("([^/]+)" if part.startswith("<") else re.escape(part) for part in re.split(_DEPENDS, name))
