"""What a worker asks a process that runs tools, and what the process answers: plain data, never a pickle."""

from typing import Any

import msgspec

from asyncrl.core.plug_ins.users_error import UsersError

HEADER_BYTES = 4
LARGEST_MESSAGE = 64 << 20
"""The most bytes of one message."""


class ToolError(Exception):
    """Raised by a tool to tell the model what went wrong. It is an expected failure, so it is not logged."""


class Load(msgspec.Struct, frozen=True, tag=True):
    """Import an environment's class."""

    module: str
    name: str


class Call(msgspec.Struct, frozen=True, tag=True):
    """Run a tool of a class that was loaded."""

    of: Load
    tool: str
    arguments: dict[str, Any]


class Answered(msgspec.Struct, frozen=True, tag=True):
    """What was asked is done; ``text`` is what the tool returned."""

    text: str = ""


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The tool raised ``ToolError``."""

    problem: str


class Failed(msgspec.Struct, frozen=True, tag=True):
    """The class could not be loaded, or the tool raised anything else."""

    error: UsersError


Request = Load | Call
Answer = Answered | Refused | Failed


def frame(message: Request | Answer) -> bytes:
    """Return the bytes of a message on its way: its length and its JSON."""
    body = msgspec.json.encode(message)
    if len(body) > LARGEST_MESSAGE:
        raise ValueError(f"{len(body):,} bytes are more than the {LARGEST_MESSAGE:,} that a message may have")
    return len(body).to_bytes(HEADER_BYTES) + body
