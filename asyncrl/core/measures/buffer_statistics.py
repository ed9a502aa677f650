"""Statistics of the replay buffer, for the driver, the views and the summary."""

from collections.abc import Mapping
from enum import StrEnum

import msgspec

from asyncrl.core.errors import FailureKind
from asyncrl.core.ids import PolicyVersion, TaskId

PROMPT_TOO_LONG = "its prompt leaves no room for a turn in model.max_context"
"""The reason of a group that was filtered because of its task's prompt."""


class GroupState(StrEnum):
    """State of a group."""

    RUNNING = "running"
    """A worker generates at least one of its episodes."""
    COMMITTED = "committed"
    """Ready to be trained."""
    TAKEN = "taken"
    """In a batch that is being trained."""
    TRAINED = "trained"
    FILTERED = "filtered"
    EXPIRED = "expired"
    """It became too old; its task is issued again as another group."""
    FAILED = "failed"
    """It lost episodes, which are issued again; its finished ones are kept."""


class TrajectoryCounts(msgspec.Struct, frozen=True):
    """How many episodes are in each state; ``issued`` is their sum. However many trajectories an episode has, it counts once."""

    issued: int = 0
    running: int = 0
    committed: int = 0
    taken: int = 0
    trained: int = 0
    filtered: int = 0
    expired: int = 0
    failed: int = 0
    missing: int = 0


class TaskCounts(msgspec.Struct, frozen=True):
    """How many draws of tasks are in each state; ``issued`` is their sum."""

    issued: int = 0
    running: int = 0
    waiting: int = 0
    trained: int = 0
    filtered: int = 0


class LedgerCounts(msgspec.Struct, frozen=True):
    """How many groups are in each state; ``issued`` is their sum.

    Attributes:
        reasons: how often groups failed, expired or were filtered, by reason.
        examples: the details of the last case, for reasons that have any.
    """

    issued: int
    running: int
    committed: int
    taken: int
    trained: int
    filtered: int
    expired: int
    failed: int
    reasons: dict[str, int]
    examples: dict[str, str] = {}
    trajectories: TrajectoryCounts = TrajectoryCounts()
    tasks: TaskCounts = TaskCounts()

    @property
    def left_out_by_filters(self) -> int:
        """How many groups ``buffer.filters`` left out.

        Others are filtered because their task breaks its environment, or because its prompt is too long.
        """
        others = (FailureKind.DATA.description, PROMPT_TOO_LONG)
        return self.filtered - sum(self.reasons.get(f"{GroupState.FILTERED}: {why}", 0) for why in others)


class StaleTokens(msgspec.Struct):
    """Counts of sampled tokens that were too old for a loss.

    Attributes:
        masked: in batches that were handed out.
        dropped: in groups that expired.
    """

    masked: int = 0
    dropped: int = 0


class HeldGroups(msgspec.Struct, frozen=True):
    """Groups that were born at the same version, are in the same state and have not ended.

    Attributes:
        version: the version at which the groups were born: none of their tokens is older.
        since: seconds since the epoch; none of the groups entered its state before this time.
    """

    version: PolicyVersion
    state: GroupState
    groups: int
    since: float


class BufferStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """What the buffer holds, and what became of everything that it issued.

    Attributes:
        version: the published version.
        ledger: groups, episodes and draws of tasks by state.
        payload_bytes: bytes of finished episodes whose group has not ended.
        kept_batches: number of batches that may have to be trained again after a crash.
        kept_bytes: bytes of payload that only these batches need.
        held: groups that have not ended, by version and state.
        lengths_issued: finished episodes, whatever became of them, by length: entry b counts lengths of b binary digits,
            ``[2 ** (b - 1), 2 ** b)`` tokens.
        lengths_trained: episodes that were trained, each counted once.
        late_samples: episodes that were handed in when nobody waited for them any more.
        stale_tokens: sampled tokens that were too old for a loss.
        lost_trajectories: episodes whose payload a crash destroyed.
        failures: failures since the run was started or resumed, by kind. A group that broke counts once for each kind, and
            a lost worker counts once however many groups it had.
        filtered_tasks: tasks that were given up because they break their environment.
        skipped_rows: malformed rows of each task source.
        too_long: how many tasks of each source are left out because their prompts leave no room for a turn, those that were
            found before the run among them; sources without any are not named.
        too_long_tasks: the tasks that were found when they were played.
        source_shares: the share of each task source in the draws, as it was at the last draw; a curriculum may change it.
        paused: why the run is paused; empty if it is not.
        filtered_in_a_row: groups that filters have left out since one was last kept.
        in_vain: a sentence about why the learner waits for a batch without end; empty if there is no sign of that.
        kept_from: the learner cannot go back to before this version, because batches of earlier versions are not kept.
        depth: the pipeline depth.
        steps_trained: number of training steps done, each counted once.
    """

    version: PolicyVersion
    ledger: LedgerCounts
    payload_bytes: int
    kept_batches: int
    kept_bytes: int
    held: tuple[HeldGroups, ...]
    lengths_issued: tuple[int, ...]
    lengths_trained: tuple[int, ...]
    late_samples: int
    stale_tokens: StaleTokens
    lost_trajectories: int
    failures: Mapping[FailureKind, int]
    filtered_tasks: tuple[TaskId, ...]
    skipped_rows: Mapping[str, int]
    source_shares: Mapping[str, float] = {}
    too_long: Mapping[str, int] = {}
    too_long_tasks: tuple[TaskId, ...] = ()
    paused: str = ""
    filtered_in_a_row: int = 0
    in_vain: str = ""
    kept_from: PolicyVersion = PolicyVersion(0)
    depth: int = 0
    steps_trained: int = 0
