"""Commands: everything that can change a replay buffer, as values that are written to the journal before they are applied.

A buffer is a pure function of its recipe, its task stream and the commands applied to it, so replaying the commands rebuilds it.
A command that raised an error when it was first applied raises the same error when it is replayed, with the same effect on the
buffer, so :func:`replay` goes on after it as the service did.
"""

import logging
from collections.abc import Iterable

import msgspec

from asyncrl.buffers.limits import Limits
from asyncrl.buffers.replay_buffer import ReplayBuffer
from asyncrl.core.batch import Batch
from asyncrl.core.episode_records import EpisodeRecord, PayloadRef
from asyncrl.core.errors import AsyncRLError, FailureKind
from asyncrl.core.ids import GroupId, PolicyVersion, WorkerId
from asyncrl.core.ticket import Ticket

logger = logging.getLogger(__name__)


class IssueTickets(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A worker asks for up to ``limit`` groups at ``now`` (seconds since the epoch)."""

    worker: WorkerId
    limit: int
    now: float

    def apply(self, buffer: ReplayBuffer) -> list[Ticket]:
        """Issue the tickets."""
        return buffer.lease(self.worker, self.limit, self.now)


class Commit(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Workers hand in finished episodes."""

    records: tuple[EpisodeRecord, ...]
    now: float

    def apply(self, buffer: ReplayBuffer) -> None:
        """Take the episodes in."""
        buffer.commit(self.records, self.now)


class Fail(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """A worker gives back an episode that failed."""

    group_id: GroupId
    sample_index: int
    kind: FailureKind
    reason: str
    incident: str = ""

    def apply(self, buffer: ReplayBuffer) -> None:
        """Take the episode back."""
        buffer.fail(self.group_id, self.sample_index, self.kind, self.reason, self.incident)


class Lost(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A worker is given up."""

    worker: WorkerId

    def apply(self, buffer: ReplayBuffer) -> None:
        """Take all its episodes back."""
        buffer.lost(self.worker)


class Expire(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Groups that are too old for ``version`` end."""

    version: PolicyVersion

    def apply(self, buffer: ReplayBuffer) -> None:
        """End the groups."""
        buffer.batches.expire(self.version)


class Take(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """The learner asks for the batch of ``version``."""

    version: PolicyVersion
    groups: int

    def apply(self, buffer: ReplayBuffer) -> Batch:
        """Choose the batch."""
        return buffer.batches.take(self.version, self.groups)


class Trained(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """The learner has trained the batch of ``version``."""

    version: PolicyVersion

    def apply(self, buffer: ReplayBuffer) -> None:
        """Move the batch's groups to their next state."""
        buffer.batches.trained(self.version)


class Advance(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """Every engine has acknowledged ``version``."""

    version: PolicyVersion

    def apply(self, buffer: ReplayBuffer) -> None:
        """Make it the published version."""
        buffer.advance(self.version)


class Checkpointed(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """The learner has a durable checkpoint of ``version`` and never goes back to an earlier one."""

    version: PolicyVersion

    def apply(self, buffer: ReplayBuffer) -> None:
        """Stop keeping older batches."""
        buffer.batches.checkpointed(self.version)


class Recovered(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """All processes of the run ended, the payload ``lost_payload`` was destroyed, and the run goes on from here."""

    lost_payload: tuple[PayloadRef, ...]

    def apply(self, buffer: ReplayBuffer) -> int:
        """Take all episodes back, drop the lost trajectories, and return their number."""
        buffer.restart()
        return buffer.batches.drop_lost_payload(self.lost_payload)


class SetSteps(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """The run has ``steps`` training steps. A run begins with this command; a longer resume repeats it."""

    steps: int

    def apply(self, buffer: ReplayBuffer) -> None:
        """Set the number of steps."""
        buffer.plan(self.steps)


class Pace(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """The pipeline depth changes."""

    depth: int

    def apply(self, buffer: ReplayBuffer) -> None:
        """Change it."""
        buffer.pace(self.depth)


class HandBack(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """A worker gives back what it has, or it is taken from it; ``why`` says the reason, as what follows the worker's name."""

    worker: WorkerId
    why: str

    def apply(self, buffer: ReplayBuffer) -> None:
        """Take all its episodes back."""
        buffer.hand_back(self.worker, self.why)


class SetLimits(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """The buffer has these limits from now on. A run begins with this command; a resume with others repeats it."""

    limits: Limits

    def apply(self, buffer: ReplayBuffer) -> None:
        """Set the limits."""
        buffer.limit(self.limits)


class LeaveOut(msgspec.Struct, frozen=True, array_like=True, tag=15):
    """A worker has found that the prompt of a group's task leaves no room for a turn."""

    group_id: GroupId
    reason: str

    def apply(self, buffer: ReplayBuffer) -> None:
        """End the group, and never draw its task again."""
        buffer.leave_out(self.group_id, self.reason)


class SetTooLong(msgspec.Struct, frozen=True, array_like=True, tag=16):
    """The tasks, by source, whose prompts were found too long for ``max_context`` before the run began or was resumed.

    Those that were found before count no more if they were found with another context.
    """

    max_context: int
    tasks: dict[str, list[int]]

    def apply(self, buffer: ReplayBuffer) -> None:
        """Never draw these tasks."""
        buffer.tasks.set_too_long(self.max_context, self.tasks)


Command = (
    IssueTickets
    | Commit
    | Fail
    | Lost
    | Expire
    | Take
    | Trained
    | Advance
    | Checkpointed
    | Recovered
    | SetSteps
    | Pace
    | HandBack
    | SetLimits
    | LeaveOut
    | SetTooLong
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)


def encode(command: Command) -> bytes:
    """Encode a command as a record of the journal."""
    return _encoder.encode(command)


def decode(record: bytes) -> Command:
    """Decode what :func:`encode` returned.

    Raises:
        msgspec.DecodeError: the record is not a command.
    """
    return _decoder.decode(record)


def replay(records: Iterable[bytes], buffer: ReplayBuffer) -> None:
    """Apply recorded commands in order. Raises what :func:`decode` raises."""
    for record in records:
        command = decode(record)
        try:
            command.apply(buffer)
        except AsyncRLError as error:
            # The command raised this the first time, too, and its caller got the error.
            logger.debug("replayed %s, which had failed: %s", type(command).__name__, error)
        # Payload that is no longer needed was freed the first time; if not, the sweep of the folder finds it.
        buffer.drain_freed()
        buffer.remarks.clear()  # the log said it the first time
