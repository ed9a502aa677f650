"""What the sandbox's client and its supervisor process tell each other: msgpack structs, each behind its length in 4 bytes."""

import struct
from enum import StrEnum

import msgspec

from asyncrl.envs.sandbox.limits import Limits

_LENGTH = struct.Struct("!I")


class Reason(StrEnum):
    """Why a run ended."""

    EXITED = "exited"
    """The command ended by itself, or died of a signal that nobody of ours sent."""
    WALL_TIME = "wall time"
    CPU_TIME = "CPU time"
    MEMORY = "memory"
    PROCESSES = "processes"
    FOLDER = "folder"
    OUTPUT = "output"
    STOPPED = "stopped"
    """Nobody waited for it any more."""


class BackendName(StrEnum):
    """A way to confine a command."""

    SANDLOCK = "sandlock"
    BUBBLEWRAP = "bubblewrap"
    NONE = "none"
    """Nothing is confined, but time, output and sizes are still limited."""


class Choice(StrEnum):
    """What a recipe may say about the backend: the first that works here, or one by name."""

    AUTO = "auto"
    SANDLOCK = "sandlock"
    BUBBLEWRAP = "bubblewrap"
    NONE = "none"

    def backends(self, auto: tuple[BackendName, ...]) -> tuple[BackendName, ...]:
        """Return which backends may be taken, the preferred first; those of ``auto`` if none is named."""
        return auto if self is Choice.AUTO else (BackendName(self.value),)


class AgentsPart(msgspec.Struct, frozen=True):
    """What the run of an agent has beside.

    Attributes:
        port: where its model is on this host's loopback. It can connect to nothing else outside.
        socket: a socket in a file that leads to the model, too.
        current_folder: where it begins, in the run's folder.
        variables: all its environment variables.
    """

    port: int
    socket: str
    current_folder: str
    variables: dict[str, str]


class Start(msgspec.Struct, frozen=True, tag=True):
    """Start a run.

    Attributes:
        run: the run's number, unique for the client.
        readable: folders that the command may read besides those of the system.
        agent: what it has beside if it is an agent's; None for one that has no network at all.
    """

    run: int
    command: tuple[str, ...]
    folder: str
    readable: tuple[str, ...]
    stdin: bytes
    limits: Limits
    agent: AgentsPart | None = None


class Stop(msgspec.Struct, frozen=True, tag=True):
    """End a run, because nobody waits for it any more."""

    run: int


class Finished(msgspec.Struct, frozen=True, tag=True):
    """How a run ended, which says nothing bad about the sandbox.

    Attributes:
        stdout, stderr: what was printed, up to ``output_kb`` of the limits.
        exit_code: the command's exit status; 128 and the signal's number if a signal killed it; None if a limit did.
        seconds: from start to end.
    """

    run: int
    stdout: bytes
    stderr: bytes
    exit_code: int | None
    reason: Reason
    seconds: float


class Broken(msgspec.Struct, frozen=True, tag=True):
    """The sandbox failed, not the command."""

    run: int
    problem: str


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The supervisor's first message: it can run commands.

    Attributes:
        backend: the name of the backend it uses.
        passed_over: what was missing for those that would have been chosen before.
    """

    backend: BackendName
    passed_over: tuple[str, ...] = ()


class Unusable(msgspec.Struct, frozen=True, tag=True):
    """The supervisor's only message if it can confine nothing here; says for each backend what is missing."""

    missing: tuple[str, ...]


Request = Start | Stop
Reply = Finished | Broken | Ready | Unusable
REQUESTS: msgspec.msgpack.Decoder[Request] = msgspec.msgpack.Decoder(Request)
REPLIES: msgspec.msgpack.Decoder[Reply] = msgspec.msgpack.Decoder(Reply)
LENGTH_BYTES = _LENGTH.size


def framed(message: Request | Reply) -> bytes:
    """The message's bytes behind their number."""
    body = msgspec.msgpack.encode(message)
    return _LENGTH.pack(len(body)) + body


def length_of(head: bytes | bytearray) -> int:
    """The number of bytes that follow the first ``LENGTH_BYTES``."""
    return int(_LENGTH.unpack_from(head)[0])
