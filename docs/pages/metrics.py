"""Writes docs/reference/metrics.md from the declarations of the metrics: ``python -m docs.pages.metrics``.

Name, unit, reduction and meaning are those of the :class:`asyncrl.core.measures.metrics.Metric` that readings are made of.
Metrics whose names depend on the run (a tool's, a task source's) are listed once, with the part that depends in angle brackets.
"""

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from asyncrl.core.measures.metrics import Metric
from asyncrl.generators.finished_episodes import MAX_NAMES, OTHER
from asyncrl.run.measures import episode_metrics, warnings
from asyncrl.run.measures.declared_metrics import declared
from asyncrl.run.measures.metric_names import LONGEST

_HEAD = """\
# Metrics

<!-- Generated from the declarations of the metrics by `python -m docs.pages.metrics`; edit these. -->

What each curve measures, for whoever reads curves or the database. A run records these metrics for each training step,
`evaluation/...` for each evaluation, where MLflow keeps them: `mlflow ui --backend-store-uri sqlite:///runs/mlflow.db` (one
database for all runs of a `run_dir`). "Since the last step" is the time between the ends of two training steps.

* **Which episodes**: `reward/...` and `episode/...` are of the episodes that the step trained. `finished/...`,
  `environment/...`, `source/...`, `member/...`, `tool/...` and `latency/...` are of those that were handed in since
  the last step, *before* the buffer's filters, and whether or not they are trained later: the fast ones come first, so
  compare `reward/mean` with `reward/<part>`, not with `environment/<part>`. Greedy episodes count for tools and latencies
  only.
* **Whose metrics**: what an environment reports (`StepResult.metrics`, the counts of a `ToolEnvironment`, rewards
  that have names) is `environment/<metric>`. In a mixture of environments, `member/<member>/...` tells them apart, and
  a tool is called `<member>.<tool>`; where tasks come from several sources, `source/<source>/...` does so for these.
* **Names**: in a name that a recipe, an environment or a tool brings along, everything but letters, digits, `_`, `.`
  and `-` becomes `_`; it is cut to {longest} characters, and then ends in a checksum that keeps names apart. The most
  frequent {sources} sources, {metrics} metrics ({source_metrics} by source) and {tools} tools have curves of their
  own, all others together are `{other}`. Each generator tells the first {names} names of a kind apart.
* **Percentiles** are of all durations since the last step, over all generators. They are read from a histogram in
  which four buckets double a duration, so they are at most 9 % off.
* **Idle**: a *generator* is idle while no request runs in its engine or the engine is paused to exchange weights
  (`idle/generators`). The *learner* is idle while it neither trains nor writes weights: it waits for a batch, for
  engines to load the version before, or for a checkpoint (`idle/learner`).
* **Where a step's time went**: `time/learner/...` and `time/generators/...` are shares of the step's wall time, and
  add up to 1 on each side. The learner never waits for an evaluation, so that is none of its parts. On the
  generators' side, time in which requests run is theirs, whatever else waits; the rest is divided by what the
  engine's places wait for: with 6 episodes in a tool and 2 places without a ticket, three quarters are `tools`.
  Sampling is divided into `prefill` and `decode` in the engine's process: what a step takes longer than steps that only
  sampled for as many requests is its prompts'. It is asked once a second, so in short steps this ratio is that of the
  second before.

The reduction is how readings of several places become one: a mean is weighted by the tokens, episodes or seconds
behind each.

A run also says in words what these curves show of trouble, once, while it goes on and at its end (`warnings` in
`summary.json`): equal rewards in all groups, a gradient of 0, most episodes cut by a limit, empty answers, an
evaluation below the first one, tools that fail or time out, calls that reach no tool, an effective sample size that
collapses, and groups that filters mostly leave out. It looks at {window} training steps together.
"""

_SECTIONS = {
    "reward": "Rewards",
    "teacher": "A teacher",
    "finished": "Finished episodes",
    "environment": "What the environment reports",
    "source": "By task source",
    "member": "By member of a mixture of environments",
    "tool": "By tool",
    "latency": "Latencies",
    "episode": "Trained episodes",
    "time": "Where a step's time went",
    "idle": "Idle",
    "run": "The run",
    "generators": "Generators",
    "buffer": "Buffer",
    "publish": "Publications",
    "evaluation": "Evaluations",
    "learner": "Learner",
    "loss": "Loss",
    "critic": "Critic",
    "correction": "Off-policy correction",
    "staleness": "Staleness",
    "tune": "What a turned knob brought",
    "mismatch": "Engine against learner",
    "experts": "Routers and experts",
    "kl": "Distances between policies",
}
"""Title of the section for each beginning of a name, in the order of the page."""


def metrics_page() -> str:
    """The page as Markdown.

    Raises:
        ValueError: a metric belongs to no section.
    """
    head = _HEAD.format(
        longest=LONGEST,
        sources=episode_metrics.MOST_SOURCES,
        metrics=episode_metrics.MOST_METRICS,
        source_metrics=episode_metrics.MOST_METRICS_OF_A_SOURCE,
        tools=episode_metrics.MOST_TOOLS,
        other=OTHER,
        names=MAX_NAMES,
        window=warnings.WINDOW,
    )
    by_section: dict[str, list[Metric]] = {beginning: [] for beginning in _SECTIONS}
    for metric in declared():
        beginning = metric.name.partition("/")[0]
        if beginning not in by_section:
            raise ValueError(f"no section is for {metric.name}; give {beginning} a title in {__name__}")
        by_section[beginning].append(metric)
    return head + "".join(_section(_SECTIONS[beginning], found) for beginning, found in by_section.items())


def _section(title: str, found: Sequence[Metric]) -> str:
    rows = [f"| `{each.name}` | {each.unit} | {each.reduction} | {_cell(each.meaning)} |" for each in found]
    return "\n".join(["", f"## {title}", "", "| metric | unit | reduction | meaning |", "|---|---|---|---|", *rows, ""])


def _cell(text: str) -> str:
    """Text as it may stand in a table; what stands in angle brackets outside of code would be taken for HTML."""
    outside = re.split(r"(`[^`]*`)", text.replace("|", "\\|"))
    return "".join(part if part.startswith("`") else re.sub(r"<([a-z]+)>", r"`<\1>`", part) for part in outside)


def main(argv: Sequence[str]) -> None:
    """Write the page to the file named, by default docs/reference/metrics.md of the checkout."""
    parser = argparse.ArgumentParser(description="Write the page of all metrics.")
    parser.add_argument("file", nargs="?", type=Path, default=Path("docs/reference/metrics.md"))
    parser.parse_args(argv).file.write_text(metrics_page(), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
