"""What is measured in a simulated pool: how stale the tokens of the losses are, and whether short episodes are favoured."""

from collections import Counter
from collections.abc import Sequence

from asyncrl.core.batch import Batch
from asyncrl.core.errors import LedgerError
from asyncrl.core.ids import GroupId
from asyncrl.core.payload import TrajectoryRecord
from asyncrl.core.ticket import Ticket
from asyncrl.simulation.pool import Observer, Shape, Varied


class StalenessTally(Observer):
    """Tokens by staleness, recomputed from when they were sampled and not from what the buffer says.

    Attributes:
        in_loss: tokens that entered a loss, by staleness.
        masked: tokens of trained rows that did not.
        rows: trained.
    """

    def __init__(self) -> None:
        self.in_loss: Counter[int] = Counter()
        self.masked = 0
        self.rows = 0

    def took(self, batch: Batch, records: Sequence[TrajectoryRecord]) -> None:
        """Count the tokens of a batch.

        Raises:
            LedgerError: a row's ``loss_tokens`` are not its tokens of ``batch.oldest_version`` or newer.
        """
        for row, record in zip(batch.rows, records, strict=True):
            counted = 0
            for version, tokens in record.sampled:
                if version >= batch.oldest_version:
                    self.in_loss[batch.version - version] += tokens
                    counted += tokens
            if counted != row.loss_tokens:
                raise LedgerError(
                    f"sample {row.sample_index} of group {row.group_id} counts {row.loss_tokens} tokens at version "
                    f"{batch.version}; {counted} were sampled by version {batch.oldest_version} or newer"
                )
            self.masked += record.length - counted
            self.rows += 1

    @property
    def mean(self) -> float:
        """Of the staleness of a token in a loss."""
        return sum(staleness * tokens for staleness, tokens in self.in_loss.items()) / self.in_loss.total()

    @property
    def max(self) -> int:
        """The largest staleness of a token in a loss."""
        return max(self.in_loss)

    def share_over(self, bound: int) -> float:
        """Share of the tokens in the losses that are older than ``bound``."""
        return sum(tokens for staleness, tokens in self.in_loss.items() if staleness > bound) / self.in_loss.total()


class Cohort(Observer):
    """Episodes of the groups issued until :meth:`close`: how long they are, and how long those of them are that were trained.

    A cohort, because at the end of a run the long ones among the last groups issued are still being generated.

    Attributes:
        issued_lengths: of every episode of every group.
        trained_lengths: of the episodes that were trained.
        varied: groups whose rewards vary, which no filter leaves out.
        trained: groups that were trained.
    """

    def __init__(self, shape: Shape, reward: Varied) -> None:
        self._shape, self._reward = shape, reward
        self._closed = False
        self._issued: set[GroupId] = set()
        self.issued_lengths: list[int] = []
        self.trained_lengths: list[int] = []
        self.varied: set[GroupId] = set()
        self.trained: set[GroupId] = set()

    def close(self) -> None:
        """Groups issued from now on do not count."""
        self._closed = True

    def issued(self, ticket: Ticket) -> None:
        """Note a group the first time it is issued."""
        if self._closed or ticket.group_id in self._issued:
            return
        self._issued.add(ticket.group_id)
        self.issued_lengths += [self._shape.length(ticket.group_id, index) for index in ticket.samples]
        if self._reward.varies(ticket.task):
            self.varied.add(ticket.group_id)

    def took(self, batch: Batch, records: Sequence[TrajectoryRecord]) -> None:
        """Note what is trained."""
        for record in records:
            if record.group_id in self._issued:
                self.trained.add(record.group_id)
                self.trained_lengths.append(record.length)

    @property
    def bias(self) -> float:
        """Mean length of the trained episodes over that of the issued ones: 1 if neither short nor long ones are favoured."""
        return _mean(self.trained_lengths) / _mean(self.issued_lengths)


def _mean(lengths: Sequence[int]) -> float:
    return sum(lengths) / len(lengths)
