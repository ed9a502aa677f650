"""Looks at a replayed step for the hook and for ``--top``: hands on each micro-batch, and keeps what carried the step."""

from collections.abc import Callable, Collection, Iterable, Mapping
from heapq import nlargest
from math import inf, isnan

from torch import Tensor

from asyncrl.core.batch import RowName, SampleName
from asyncrl.learners.algorithm.losses import Outcome
from asyncrl.learners.batches.micro_batch import MicroBatch
from asyncrl.replay.hook import SeenMicroBatch, seen
from asyncrl.replay.job import CarriedRow, CarriedToken


def most_first(rows: Iterable[CarriedRow], count: int, odd: Collection[SampleName]) -> list[CarriedRow]:
    """Return the ``count`` rows that carried a step most: those of ``odd`` episodes, and then by their gradient."""
    return nlargest(count, rows, key=lambda row: (row.name[:2] in odd, or_infinite(row.norm)))


def or_infinite(size: float) -> float:
    """A size by which to sort: what is no number comes before all numbers."""
    return inf if isnan(size) else size


def _bucket(number: int) -> str:
    """Where in its row a sampled token is: ``1 to 16``, ``17 to 64``, ``65 to 256`` and so on, each four times as far."""
    first, last = 1, 16
    while number >= last:
        first, last = last + 1, 4 * last
    return f"{first} to {last}"


class Watching:
    """The watch of one training step on one rank.

    Args:
        step: the training step.
        hook: called with each micro-batch; None for no hook.
        top: how many tokens and rows to keep.
        gap: how many tokens to keep where learner and engine differ most.
        odd: episodes whose rewards stand out; their rows are kept in any case, and come first.
        reports: whether this rank tells of its slice; others only take part.
    """

    def __init__(
        self,
        step: int,
        rank: int,
        hook: Callable[[SeenMicroBatch], object] | None,
        top: int,
        gap: int,
        odd: Collection[SampleName],
        *,
        reports: bool,
    ) -> None:
        self._step, self._rank, self._hook, self._top, self._reports = step, rank, hook, top, reports
        self._odd, self._gap = odd, gap
        self._gaps: list[CarriedToken] = []
        self._gap_by: dict[str, tuple[float, int]] = {}
        self._optimizer_step = -1
        self._norms: Mapping[RowName, float] = {}
        self._rows: list[CarriedRow] = []
        self._tokens: list[CarriedToken] = []

    def rows(self, norms: Mapping[RowName, float]) -> None:
        """Begin the next optimizer step."""
        self._optimizer_step += 1
        self._norms = norms

    def micro_batch(self, batch: MicroBatch, logp: Tensor, outcome: Outcome) -> None:
        """Hand a micro-batch to the hook, and keep what it did."""
        if not self._reports:
            return
        found = seen(self._step, self._optimizer_step, self._rank, batch, logp, outcome, self._norms)
        if self._hook is not None:
            self._hook(found)
        if self._top or self._gap:
            self._keep(found)

    def carried(self) -> tuple[tuple[CarriedRow, ...], tuple[CarriedToken, ...]]:
        """Return the rows and tokens of this slice that carried the step, most first."""
        return (
            tuple(most_first(self._rows, self._top, self._odd)),
            tuple(nlargest(self._top, self._tokens, key=lambda token: or_infinite(token.pull))),
        )

    def gaps(self) -> tuple[tuple[CarriedToken, ...], dict[str, tuple[float, int]]]:
        """Return the tokens of this slice where learner and engine differ most, and sums by what tokens have in common."""
        return tuple(self._gaps), self._gap_by

    def _keep_gaps(self, token: CarriedToken, turn: int) -> None:
        size = abs(token.learner - token.engine)
        for what in (f"staleness {token.staleness}", f"turn {turn}", f"sampled token {_bucket(token.number)}"):
            total, count = self._gap_by.get(what, (0.0, 0))
            self._gap_by[what] = total + size, count + 1

    def _keep(self, found: SeenMicroBatch) -> None:
        columns = (found.pull, found.advantage, found.weight, found.ratio, found.staleness, found.learner, found.engine)
        pull, advantage, weight, ratio, staleness, learner, engine = (column.cpu().tolist() for column in columns)
        mask, row_of, turn_of = (column.cpu().tolist() for column in (found.mask, found.row, found.turn))
        first_pass = self._optimizer_step == 0
        places: dict[int, list[int]] = {}
        for place, row in enumerate(row_of):
            places.setdefault(row, []).append(place)
        tokens, gaps = [], []
        for row, of_row in places.items():
            name, inside = found.names[row], [place for place in of_row if mask[place]]
            for number, place in enumerate(of_row):
                values = advantage[place], weight[place], ratio[place], staleness[place], learner[place], engine[place]
                token = CarriedToken(name, self._optimizer_step, number, pull[place], *values)
                if or_infinite(pull[place]) > 0:
                    tokens.append(token)
                if mask[place] and first_pass:
                    gaps.append(token)
                    self._keep_gaps(token, 1 + turn_of[place] - turn_of[of_row[0]])
            count = max(1, len(inside))
            self._rows.append(
                CarriedRow(
                    name,
                    self._optimizer_step,
                    float(found.gradient_norm[row]),
                    len(inside),
                    sum(advantage[place] for place in inside) / count,
                    sum(weight[place] for place in inside) / count,
                    max((staleness[place] for place in inside), default=0),
                    sum(abs(learner[place] - engine[place]) for place in inside) / count,
                )
            )
        self._gaps = nlargest(self._gap, [*self._gaps, *gaps], key=lambda token: or_infinite(abs(token.learner - token.engine)))
        self._tokens = nlargest(self._top, [*self._tokens, *tokens], key=lambda token: or_infinite(token.pull))
