"""Measurements in a simulated pool: how stale the tokens in the losses are, and whether short episodes are favoured."""

from collections import Counter
from collections.abc import Sequence

from asyncrl.bench.simulated_pool.pool import Observer, Shape, Varied
from asyncrl.core.batch import Batch
from asyncrl.core.episode_records import EpisodeRecord
from asyncrl.core.errors import LedgerError
from asyncrl.core.ids import GroupId
from asyncrl.core.ticket import Ticket


class StalenessTally(Observer):
    """Counts tokens by staleness, computed from when they were sampled, not from what the buffer says.

    Attributes:
        in_loss: tokens that entered a loss, by staleness.
        masked: tokens of trained rows that did not enter a loss.
    """

    def __init__(self) -> None:
        self.in_loss: Counter[int] = Counter()
        self.masked = 0
        self.rows = 0

    def took(self, batch: Batch, records: Sequence[EpisodeRecord]) -> None:
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
        """Mean staleness of the tokens in the losses."""
        return sum(staleness * tokens for staleness, tokens in self.in_loss.items()) / self.in_loss.total()

    @property
    def max(self) -> int:
        """Largest staleness of a token in a loss."""
        return max(self.in_loss)

    def share_over(self, bound: int) -> float:
        """Return the share of the tokens in the losses whose staleness is over ``bound``."""
        return sum(tokens for staleness, tokens in self.in_loss.items() if staleness > bound) / self.in_loss.total()


class Cohort(Observer):
    """Lengths of the episodes of all groups issued before :meth:`close`, and of those that were trained.

    The last groups of a run do not count, because their long episodes are still being generated when the run ends.

    Attributes:
        varied: groups whose rewards vary, so that no filter leaves them out.
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
        """Ignore groups that are issued from now on."""
        self._closed = True

    def issued(self, ticket: Ticket) -> None:
        """Note a group the first time it is issued."""
        if self._closed or ticket.group_id in self._issued:
            return
        self._issued.add(ticket.group_id)
        self.issued_lengths += [self._shape.length(ticket.group_id, index) for index in ticket.samples]
        if self._reward.varies(ticket.task):
            self.varied.add(ticket.group_id)

    def took(self, batch: Batch, records: Sequence[EpisodeRecord]) -> None:
        """Note the lengths of the trained episodes."""
        for record in records:
            if record.group_id in self._issued:
                self.trained.add(record.group_id)
                self.trained_lengths.append(record.length)

    @property
    def bias(self) -> float:
        """Mean length of trained episodes divided by that of issued ones; 1 if neither short nor long episodes are favoured."""
        return _mean(self.trained_lengths) / _mean(self.issued_lengths)


def _mean(lengths: Sequence[int]) -> float:
    return sum(lengths) / len(lengths)
