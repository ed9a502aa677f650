"""Makes the page of a plan, in the style of a report.

What always holds: it is one file that loads nothing, which its own content security policy enforces; names and notes are text.
"""

from pathlib import Path

import msgspec
from markupsafe import Markup

from asyncrl.core.measures.units import memory
from asyncrl.core.text import writable
from asyncrl.planning.plan_request import PlanAnswer
from asyncrl.planning.prediction import INTERVALS, Figure, Prediction
from asyncrl.planning.view import with_interval
from asyncrl.run.report.figures import SIZE, Tick, number, ticks
from asyncrl.run.report.page import STYLE, page_template

_HERE = Path(__file__).parent


class Mark(msgspec.Struct, frozen=True):
    """A prediction in the picture, in units of its width and height: where it is, and how far its intervals reach."""

    x: float
    y: float
    left: float
    right: float
    top: float
    bottom: float
    chosen: bool
    synchronous: bool
    label: str
    below: bool


class Picture(msgspec.Struct, frozen=True):
    """Throughput over staleness of all predictions; ``front`` joins those worth choosing."""

    marks: tuple[Mark, ...]
    front: str
    across: tuple[Tick, ...]
    up: tuple[Tick, ...]


def plan_page(answer: PlanAnswer) -> str:
    """Return the page as HTML that can be encoded as UTF-8."""
    page = page_template("plan.html.j2", _HERE, memory=memory, interval=with_interval).render(
        style=Markup(STYLE),
        answer=answer,
        every=answer.every,
        best=answer.best,
        picture=_picture(answer, answer.every),
        notes=answer.notes,
        intervals=INTERVALS,
        parts=list(dict.fromkeys(part for each in answer.every for part in each.memory)),
    )
    return writable(page)


def _picture(answer: PlanAnswer, every: tuple[Prediction, ...]) -> Picture:
    speeds = [each.trajectories_per_s for each in every]
    ages = [each.staleness_mean for each in every]
    fastest, oldest = 1.06 * max(each.high for each in speeds) or 1.0, 1.06 * max(max(each.high for each in ages), 0.5)

    def across(age: float) -> float:
        return round(age / oldest * SIZE, 1)

    def up(speed: float) -> float:
        return round((1 - speed / fastest) * SIZE, 1)

    def mark(place: int) -> Mark:
        speed, age = speeds[place], ages[place]
        return Mark(
            x=across(age.mean),
            y=up(speed.mean),
            left=across(age.low),
            right=across(age.high),
            top=up(speed.high),
            bottom=up(speed.low),
            chosen=place in answer.front,
            synchronous=place >= len(answer.points),
            label=_label(every[place], speed, age),
            below=up(speed.mean) < SIZE / 8,
        )

    joined = " ".join(f"{across(ages[place].mean)},{up(speeds[place].mean)}" for place in answer.front)
    return Picture(tuple(map(mark, range(len(every)))), joined, ticks(0.0, oldest), ticks(0.0, fastest))


def _label(prediction: Prediction, speed: Figure, age: Figure) -> str:
    return f"{prediction.name}: {number(speed.mean)} trajectories/s, staleness {age.mean:.2f}"
