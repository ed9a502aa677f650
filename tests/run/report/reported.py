"""Runs to be reported on, made without engines: a recipe, a summary, metrics in MLflow, and kept episodes."""

import math
from html.parser import HTMLParser
from pathlib import Path

import msgspec
from made_episodes import PROMPT_TOKENS, row, turn, write

from asyncrl.core.measures.buffer_statistics import LedgerCounts
from asyncrl.episodes.schema import Kind
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.measures import metrics
from asyncrl.run.measures.summary import EvaluationEnds, Status, Summary
from asyncrl.run.recipe.compose import compose
from asyncrl.run.report.page import report_page
from asyncrl.run.report.run_record import RunRecord
from asyncrl.run.tracking.tracker import Tracker

STEPS = 12
HOSTILE = "</script><script>alert(1)</script><img src=http://x/y onerror=alert(1)>{{7*7}}\x1b[31m\x00\u202eabc\u2028 \x85"
PARTS = {"time/learner/waiting": 0.3, "time/learner/backward": 0.6, "time/learner/delivering": 0.1}
LEDGER = LedgerCounts(
    issued=24, running=0, committed=0, taken=0, trained=22, filtered=0, expired=0, failed=2, reasons={f"broken {HOSTILE}": 2}
)


def make_run(
    parent: Path, *overrides: str, tracked: bool = False, rows: list[dict] | None = None, **summary: object
) -> RunFolder:
    """A run that has ended. ``tracked``: with metrics, which takes seconds, since MLflow makes a database."""
    recipe = compose("quickstart", [f"run_dir={parent}", *overrides])
    folder = RunFolder.create(recipe)
    warnings = (f"all groups are alike {HOSTILE}",)
    ended = Summary(
        **{
            "warnings": warnings,
            "status": Status.COMPLETED,
            "steps": STEPS,
            "evaluation": EvaluationEnds(0.4, 0.9),
            "ledger": LEDGER,
            **summary,
        }
    )
    ended.write(folder.summary)
    if tracked:
        tracker = Tracker(recipe, folder)
        tracker.start()
        for step in range(1, STEPS + 1):
            values = {metrics.REWARD.name: step / STEPS, "staleness/mean": 1.0, "staleness/max": 2.0, "my/metric": math.nan}
            values |= {"staleness/tokens_at_0": 30.0, "staleness/tokens_at_2": 10.0, "idle/generators": 0.25, **PARTS}
            values |= {"latency/episode_p99": 1.5, "tool/look_up/seconds_p50": 0.1}
            tracker.log(step, values | ({"learner/grad_norm": math.inf} if step == 3 else {"learner/grad_norm": 0.5}))
        tracker.finish(Status.COMPLETED, 60)
    if rows is None:
        rows = [episode(step) for step in range(1, STEPS + 1)]
        rows += [row(STEPS, kind=Kind.EVALUATION, task_id="held-out", reward=0.5)]
    write(folder.path, rows)
    return folder


def episode(step: int, text: str = HOSTILE, **changed: object) -> dict:
    """An episode of two turns, with a call that failed, all of whose texts are ``text``."""
    text = text.encode(errors="replace").decode()
    calls = [("add", 0.2, "ok", ""), (f"search {text}", 3.0, "timeout", text)]
    first = turn(PROMPT_TOKENS, text=text, answer=text, calls=calls, reward=-0.5)
    second = turn(PROMPT_TOKENS + 7, text=text, answer="", reward=0.01 * step)
    changed = {"prompt": text, "task_id": text, "metrics": [(text, float(step)), ("format", 0.5)], **changed}
    return row(step, turns=[first, second], **changed)


def page_of(*folders: RunFolder) -> str:
    """The report on runs."""
    return report_page([RunRecord(folder.path) for folder in folders])


class Checked(HTMLParser):
    """A page as a parser reads it; what is not well-formed fails.

    Attributes:
        tags: each kind of element, and how many there are.
        attributes: names and values of all attributes.
        data: the content of the script element with this id.
    """

    VOID = ("meta", "br", "img", "input", "link", "wbr")

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: dict[str, int] = {}
        self.attributes: list[tuple[str, str | None]] = []
        self.texts: list[str] = []
        self.scripts: list[str] = []
        self._open: list[str] = []
        self._goes_on = False
        self.feed(page)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag, attributes):
        self._see(tag, attributes)
        self._goes_on = tag == "wbr"  # what follows is a part of the same word
        if tag not in self.VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self._see(tag, attributes)

    def handle_endtag(self, tag):
        assert self._open[-1:] == [tag], self._open
        self._open.pop()

    def handle_data(self, data):
        if self._goes_on:
            self.texts[-1] += data
        else:
            (self.scripts if self._open[-1:] == ["script"] else self.texts).append(data)
        self._goes_on = False

    def _see(self, tag, attributes):
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.attributes += attributes

    @property
    def data(self) -> dict:
        return msgspec.json.decode(max(self.scripts, key=lambda script: script.startswith("{")))

    @property
    def text(self) -> str:
        return "\n".join(self.texts)
