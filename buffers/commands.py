"""Everything that can change a replay buffer, as values: written to the journal first, then applied.

A buffer is a pure function of its recipe, its task stream and the commands applied to it: the commands replayed are the buffer.
A command that raised when it was applied raises the same when it is replayed, and leaves the same behind: :func:`replay` goes on
after it as the service did.
"""

import logging
from collections.abc import Iterable

import msgspec

from asyncrl.core.batch import Batch
from asyncrl.core.errors import AsyncRLError, FailureKind
from asyncrl.core.ids import GroupId, PolicyVersion, WorkerId
from asyncrl.core.payload import PayloadRef, TrajectoryRecord
from asyncrl.core.ticket import Ticket
from buffers.replay_buffer import ReplayBuffer

logger = logging.getLogger(__name__)


class Lease(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """A worker asked for up to ``limit`` groups at ``now``, seconds since the epoch."""

    worker: WorkerId
    limit: int
    now: float

    def apply(self, buffer: ReplayBuffer) -> list[Ticket]:
        """The tickets."""
        return buffer.lease(self.worker, self.limit, self.now)


class Commit(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Episodes were finished."""

    records: tuple[TrajectoryRecord, ...]
    now: float

    def apply(self, buffer: ReplayBuffer) -> None:
        """Take them in."""
        buffer.commit(self.records, self.now)


class Fail(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """An episode failed."""

    group_id: GroupId
    sample_index: int
    kind: FailureKind
    reason: str

    def apply(self, buffer: ReplayBuffer) -> None:
        """Take it back."""
        buffer.fail(self.group_id, self.sample_index, self.kind, self.reason)


class Lost(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """A worker is gone."""

    worker: WorkerId

    def apply(self, buffer: ReplayBuffer) -> None:
        """Take all its episodes back."""
        buffer.lost(self.worker)


class Expire(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """What is too old to be trained at ``version`` is to go."""

    version: PolicyVersion

    def apply(self, buffer: ReplayBuffer) -> None:
        """Let it go."""
        buffer.batches.expire(self.version)


class Take(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """The learner asked for its batch."""

    version: PolicyVersion
    groups: int

    def apply(self, buffer: ReplayBuffer) -> Batch:
        """The batch."""
        return buffer.batches.take(self.version, self.groups)


class Trained(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """The batch of ``version`` was trained."""

    version: PolicyVersion

    def apply(self, buffer: ReplayBuffer) -> None:
        """Count it."""
        buffer.batches.trained(self.version)


class Advance(msgspec.Struct, frozen=True, array_like=True, tag=8):
    """``version`` was published."""

    version: PolicyVersion

    def apply(self, buffer: ReplayBuffer) -> None:
        """Make it the published version."""
        buffer.advance(self.version)


class Checkpointed(msgspec.Struct, frozen=True, array_like=True, tag=9):
    """The learner will never come back to before ``version``."""

    version: PolicyVersion

    def apply(self, buffer: ReplayBuffer) -> None:
        """Let go of the batches before it."""
        buffer.batches.checkpointed(self.version)


class Recovered(msgspec.Struct, frozen=True, array_like=True, tag=10):
    """All processes of the run were gone, and with them the payload ``lost_payload``; a recovery begins anew from here."""

    lost_payload: tuple[PayloadRef, ...]

    def apply(self, buffer: ReplayBuffer) -> int:
        """How many rows went with the payload."""
        buffer.restart()
        return buffer.batches.drop_lost_payload(self.lost_payload)


class Plan(msgspec.Struct, frozen=True, array_like=True, tag=11):
    """The run is to have ``steps`` steps: the first command of all, and once more each time that it is made longer."""

    steps: int

    def apply(self, buffer: ReplayBuffer) -> None:
        """Let as many be generated for."""
        buffer.plan(self.steps)


Command = Lease | Commit | Fail | Lost | Expire | Take | Trained | Advance | Checkpointed | Recovered | Plan

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[Command] = msgspec.msgpack.Decoder(Command)


def encode(command: Command) -> bytes:
    """The command as a record of the journal."""
    return _encoder.encode(command)


def decode(record: bytes) -> Command:
    """Inverse of :func:`encode`.

    Raises:
        msgspec.DecodeError: the record is no command.
    """
    return _decoder.decode(record)


def replay(records: Iterable[bytes], buffer: ReplayBuffer) -> None:
    """Apply recorded commands in order.

    Raises:
        msgspec.DecodeError: a record is no command.
    """
    for record in records:
        command = decode(record)
        try:
            command.apply(buffer)
        except AsyncRLError as error:
            # It was raised when the command was applied first, too, and whoever had asked for it was told.
            logger.debug("replayed %s, which had failed: %s", type(command).__name__, error)
        # What is no longer needed was freed then; what was not is found by the sweep of the folder.
        buffer.drain_freed()
