"""The summary of how a run ended: ``summary.json`` for programs; :mod:`asyncrl.run.views.end_view` shows it to people."""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Self

import msgspec

from asyncrl.core.files.file_errors import cause_and_remedy
from asyncrl.core.files.file_formats import check_json_format
from asyncrl.core.files.whole_file import write_whole
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.measures.buffer_statistics import LedgerCounts
from asyncrl.core.measures.time_split import IdleShares
from asyncrl.core.plug_ins.error_counts import CountedError, at_least
from asyncrl.core.text import pluralize, writable_json
from asyncrl.run.measures.bottleneck import Bottleneck

NO_GROUPS = LedgerCounts(issued=0, running=0, committed=0, taken=0, trained=0, filtered=0, expired=0, failed=0, reasons={})
"""The ledger of a run that has not issued any group."""


FORMAT = 1
"""The format of recorded summaries. A file that does not say its format has this one."""
REWARD_STEPS = 10
"""The rewards of this many training steps are averaged, at the beginning and at the end of a run."""


class Status(StrEnum):
    """How a run ended."""

    COMPLETED = "completed"
    INTERRUPTED = "interrupted"
    """The user stopped it."""
    FAILED = "failed"


class PlayedEvaluation(msgspec.Struct, frozen=True):
    """One evaluation of a run.

    Attributes:
        version: the policy version that it stands for: what the engines had when its tasks were given to them.
        oldest, newest: the oldest and the newest policy version that sampled a token of it.
        reward: its mean reward.
    """

    version: PolicyVersion
    oldest: PolicyVersion
    newest: PolicyVersion
    reward: float


class EvaluationEnds(msgspec.Struct, frozen=True):
    """Mean reward of the first and the last evaluation; None where there was none.

    Attributes:
        most_versions: the most policy versions, one after the other, that the episodes of one evaluation are of; 1 where each
            evaluation was of one version.
        skipped: versions whose evaluation was due, and that no evaluation stands for: another one was still being played, its
            episodes were played by later versions because generators had died, or the run was killed.
        played: all evaluations, in order.
    """

    first: float | None = None
    last: float | None = None
    most_versions: int = 1
    skipped: tuple[PolicyVersion, ...] = ()
    played: tuple[PlayedEvaluation, ...] = ()

    @classmethod
    def of(cls, played: Sequence[PlayedEvaluation], skipped: Iterable[PolicyVersion]) -> Self:
        """Sum up the evaluations of a run."""
        left_out = tuple(sorted(skipped))
        if not played:
            return cls(skipped=left_out)
        spread = max(each.newest - each.oldest + 1 for each in played)
        return cls(played[0].reward, played[-1].reward, spread, left_out, tuple(played))


class RewardEnds(msgspec.Struct, frozen=True):
    """Mean final reward of the batches of the first and the last :data:`REWARD_STEPS` training steps.

    None where there was no training step.
    """

    first: float | None = None
    last: float | None = None


class StalenessTotals(msgspec.Struct, frozen=True):
    """Staleness of all trained tokens of the run, in policy versions; ``bound`` is the recipe's ``max_staleness``."""

    mean: float = 0.0
    max: float = 0.0
    bound: int = 0


class TokenTotals(msgspec.Struct, frozen=True):
    """Tokens that the engines sampled, and sampled tokens that entered a loss.

    If a run was killed, tokens that engines sampled between its last checkpoint and the kill only count if they were
    trained.
    """

    generated: int = 0
    trained: int = 0


class RecordedSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A summary that is written as JSON when something ends, whatever happened.

    Attributes:
        reason: why it was interrupted or failed; empty if it completed.
        format: the format of the file.
    """

    status: Status
    reason: str = ""
    format: int = FORMAT

    def write(self, path: Path) -> None:
        """Write as JSON. A reader finds either the whole file or none."""
        write_whole(path, msgspec.json.format(writable_json(self), indent=2) + b"\n")

    def recorded(self, path: Path) -> Self:
        """Write the summary, and return it. If that fails, the one returned is not of a completed run, and says why."""
        try:
            self.write(path)
        except OSError as error:
            problem = f"{path} could not be written: {cause_and_remedy(error)}"
            status = Status.FAILED if self.status is Status.COMPLETED else self.status
            return msgspec.structs.replace(self, status=status, reason="; ".join(filter(None, (self.reason, problem))))
        return self

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read what :meth:`write` wrote.

        Raises:
            OSError: the file cannot be read.
            ValueError, RecursionError: it holds no summary.
            UnknownFormat: another version of asyncrl wrote it, in another way.
        """
        return cls.decoded(path.read_bytes(), path)

    @classmethod
    def decoded(cls, content: bytes, path: Path) -> Self:
        """Return the summary in ``content``, which is that of the file ``path``; raises as :meth:`read` but for ``OSError``."""
        check_json_format(content, path, FORMAT)
        return msgspec.json.decode(content, type=cls)


class Summary(RecordedSummary, frozen=True, kw_only=True):
    """How a run ended. Figures that it never reached, because it failed early, are 0 or None.

    Attributes:
        steps: training steps done.
        wall_s: seconds from start to end, startup and shutdown included.
        training_s: the part of ``wall_s`` from the first to the last training step, without what comes before: making the model,
            starting, evaluating version 0.
        reward: the reward in training, at first and at last.
        trajectories_per_s: episodes trained over the training time.
        bottleneck: what held the run up in its last training steps; None before the first.
        warnings: what was seen in training that a person should look at, a sentence each; see
            :mod:`asyncrl.run.measures.warnings`.
        errors: errors of the environments' own code, by place.
        too_long: how many tasks of each source were left out because their prompts leave no room for a turn.
        resumes: how often the run was resumed, failed attempts included. The time in between is not part of ``wall_s``.
    """

    steps: int = 0
    wall_s: float = 0.0
    training_s: float = 0.0
    reward: RewardEnds = RewardEnds()
    evaluation: EvaluationEnds = msgspec.field(default=EvaluationEnds(), name="eval")
    staleness: StalenessTotals = StalenessTotals()
    tokens: TokenTotals = TokenTotals()
    trajectories_per_s: float = 0.0
    idle: IdleShares = IdleShares()
    bottleneck: Bottleneck | None = None
    versions_published: int = 0
    ledger: LedgerCounts = NO_GROUPS
    errors: tuple[CountedError, ...] = ()
    too_long: dict[str, int] = {}
    resumes: int = 0
    warnings: tuple[str, ...] = ()

    def leaving_out(self, held_out: Mapping[str, Sequence[int]]) -> "Summary":
        """Return the summary with the held-out tasks that were left out, too, by source."""
        counts = {f"tasks.evaluation ({name})": len(places) for name, places in held_out.items()}
        return msgspec.structs.replace(self, too_long=self.too_long | counts)

    def going_on_from(self, before: "Summary", seconds: float = 0.0) -> "Summary":
        """Return the summary of a resumed run, which reports no less than the run had reached before.

        A resumed run measures from the checkpoint that it began from. Until it has done as many steps as ``before``,
        the figures of ``before`` are kept, with the new status and reason. Afterwards, too, what was sampled and what went wrong
        in training steps that were done again is not forgotten, and the bottleneck is that of ``before`` if there was no other.

        Args:
            before: the summary that the run would have had before it was resumed.
            seconds: how long the run has gone on since.
        """
        known = self
        if self.steps < before.steps:
            known = msgspec.structs.replace(
                before,
                status=self.status,
                reason=self.reason,
                versions_published=max(self.versions_published, before.versions_published),
                ledger=self.ledger if self.ledger.issued >= before.ledger.issued else before.ledger,
            )
        generated = max(self.tokens.generated, before.tokens.generated)
        known = msgspec.structs.replace(
            known,
            tokens=msgspec.structs.replace(known.tokens, generated=generated),
            errors=at_least(self.errors, before.errors),
            bottleneck=known.bottleneck or before.bottleneck,
        )
        return msgspec.structs.replace(known, wall_s=max(self.wall_s, before.wall_s + seconds), resumes=before.resumes + 1)


def training_reward(summary: Summary) -> str:
    """Say what the reward of training was at the beginning and at the end; of a run too short for both, say it once."""
    first, last = summary.reward.first, summary.reward.last
    if first is None or last is None:
        return "none"
    if summary.steps <= REWARD_STEPS:
        return f"{last:.3f} in {pluralize(summary.steps, 'training step')}"
    return f"{first:.3f} in the first {REWARD_STEPS} training steps, {last:.3f} in the last {REWARD_STEPS}"
