"""The messages between a worker and a server of environments: msgpack maps over a WebSocket, each with its name under ``type``.

docs/how-to/remote-environments.md describes them for servers in other languages. What always holds: a message is plain data,
so nothing that arrives is ever executed; a reader ignores keys that it does not know, so that either side may have newer ones.
"""

import json
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

import msgspec

from asyncrl.core.errors import ComponentFailed
from asyncrl.core.messages import CallOutcome, CallRecord, MalformedCall, Message, ToolCall, ToolSpec
from asyncrl.core.plug_ins.users_error import UsersError
from asyncrl.core.task import Task
from asyncrl.core.text import short, writable
from asyncrl.envs.base import Action, Fault, Observation, StepResult

PROTOCOL = 1
"""Version of the protocol. It changes when an old peer would misread a message, and not when a key is added."""
LARGEST_MESSAGE = 64 << 20
"""The most bytes of a message, in both directions."""
PING_S = 40.0
"""Each side pings the other one after so many seconds of silence, and gives it up if half as many pass without an answer."""
HELLO_S = 10.0
"""Seconds in which the first message must have come."""
TASKS_IN_A_MESSAGE = 500
REFUSED_CODE = 4000
"""Close code of a connection whose hello is refused, because the versions differ."""


class Hello(msgspec.Struct, frozen=True, tag_field="type", tag="hello"):
    """The client's first message. It can be read in every version of the protocol.

    Attributes:
        protocol: the client's :data:`PROTOCOL`.
        client: name and version of the client's program.
    """

    protocol: int
    client: str


class Welcome(msgspec.Struct, frozen=True, tag_field="type", tag="welcome"):
    """The server's answer to a hello of its own version.

    Attributes:
        environment: what is served; the same from all servers of a run.
        server: name and version of the server's program.
        session: names the connection in logs and messages.
    """

    protocol: int
    environment: str
    server: str
    session: str


class Refused(msgspec.Struct, frozen=True, tag_field="type", tag="refused"):
    """The server's answer to a hello that it refuses, after which it closes the connection."""

    protocol: int
    problem: str


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A request of the client, which the server answers exactly once, with ``id``.

    Attributes:
        id: differs from those of all open requests of the connection.
        deadline_s: seconds after its arrival in which the server answers; later, it answers that it is late.
    """

    id: int
    deadline_s: float


class Describe(Request, frozen=True, tag_field="type", tag="describe"):
    """Asks whether these options of the environment's constructor fit."""

    options: dict[str, Any]


class MakeTasks(Request, frozen=True, tag_field="type", tag="make_tasks"):
    """Asks for the tasks that the environment makes itself; answered by one or more :class:`Tasks`."""

    options: dict[str, Any]
    split: str
    count: int
    seed: int


class Reset(Request, frozen=True, tag_field="type", tag="reset"):
    """Makes an environment and begins its episode.

    Attributes:
        episode: the client's number for it, which no open episode of the connection has.
        tool_timeout_s: deadline of one tool call.
    """

    episode: int
    task: Task
    options: dict[str, Any]
    tool_timeout_s: float


class WireCall(msgspec.Struct, frozen=True, tag_field="type", tag="call"):
    """A tool call; ``arguments`` is the text of a JSON object, because a model's numbers may be too large for msgpack."""

    name: str
    arguments: str


class WireMalformedCall(msgspec.Struct, frozen=True, tag_field="type", tag="malformed"):
    """A call that could not be read."""

    text: str
    problem: str


class Step(Request, frozen=True, tag_field="type", tag="step"):
    """Plays one turn of an episode."""

    episode: int
    content: str
    calls: tuple[WireCall | WireMalformedCall, ...]


class Close(Request, frozen=True, tag_field="type", tag="close"):
    """Ends an episode; also one whose reset or step failed."""

    episode: int


class Cancel(msgspec.Struct, frozen=True, tag_field="type", tag="cancel"):
    """The client no longer waits for request ``id``; the server stops it, and answers it or not."""

    id: int


class Described(msgspec.Struct, frozen=True, tag_field="type", tag="described"):
    """The options fit."""

    id: int


class Tasks(msgspec.Struct, frozen=True, tag_field="type", tag="tasks"):
    """Some of the tasks; ``more`` of them follow under the same id."""

    id: int
    tasks: tuple[Task, ...]
    more: bool


class Observed(msgspec.Struct, frozen=True, tag_field="type", tag="observed"):
    """The answer to a reset.

    Attributes:
        scores_answers: see :class:`~asyncrl.envs.base.Environment`.
    """

    id: int
    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...]
    scores_answers: bool = False


class WireRecord(msgspec.Struct, frozen=True):
    """The record of one tool call of the turn; see :class:`asyncrl.core.messages.CallRecord`."""

    tool: str
    seconds: float
    outcome: CallOutcome
    problem: str = ""


class Stepped(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="stepped"):
    """The answer to a step; see :class:`asyncrl.envs.StepResult`."""

    id: int
    messages: tuple[Message, ...]
    reward: float
    done: bool
    metrics: dict[str, float] = {}
    fault: Fault | None = None
    calls: tuple[WireRecord, ...] = ()
    errors: tuple[UsersError, ...] = ()
    rewards: dict[str, float] = {}


class Closed(msgspec.Struct, frozen=True, tag_field="type", tag="closed"):
    """The answer to a close."""

    id: int


class FailureReason(StrEnum):
    """Why a request failed."""

    REFUSED = "refused"
    """The options do not fit, or the environment makes no tasks."""
    BROKEN = "broken"
    """The environment raised an error, or returned something invalid."""
    LATE = "late"
    """The deadline passed."""
    LOST = "lost"
    """What the environment stands on is gone through no fault of the task, or the server is ending."""


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag="failed"):
    """The answer to a request that failed.

    Attributes:
        place: key of the recipe to blame, if it was refused.
        raised: the error of the environment's code and its place, if it is known.
    """

    id: int
    reason: FailureReason
    problem: str
    remedy: str = ""
    place: str = ""
    raised: UsersError | None = None


FromClient = Hello | Describe | MakeTasks | Reset | Step | Close | Cancel
Answer = Described | Tasks | Observed | Stepped | Closed | Failed
FromServer = Welcome | Refused | Answer

encoder = msgspec.msgpack.Encoder()
_from_client: msgspec.msgpack.Decoder[FromClient] = msgspec.msgpack.Decoder(FromClient)
_from_server: msgspec.msgpack.Decoder[FromServer] = msgspec.msgpack.Decoder(FromServer)


def from_client(data: bytes) -> FromClient:
    """Read a message of a client.

    Raises:
        ComponentFailed: the bytes are not a message of this protocol.
    """
    try:
        return _from_client.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ComponentFailed(f"this is not a message of protocol {PROTOCOL}: {error}") from error


def from_server(data: bytes) -> FromServer:
    """Read a message of a server.

    Raises:
        ComponentFailed: the bytes are not a message of this protocol.
    """
    try:
        return _from_server.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ComponentFailed(f"this is not a message of protocol {PROTOCOL}: {error}") from error


def wire_calls(action: Action) -> tuple[WireCall | WireMalformedCall, ...]:
    """Return the calls of a turn as they are sent."""
    return tuple(
        WireMalformedCall(writable(call.text), writable(call.problem))
        if isinstance(call, MalformedCall)
        else WireCall(writable(call.name), writable(json.dumps(call.arguments, ensure_ascii=False)))
        for call in action.calls
    )


def action_of(step: Step) -> Action:
    """Return the turn that a step holds."""
    return Action(step.content, tuple(_call(call) for call in step.calls))


def _call(call: WireCall | WireMalformedCall) -> ToolCall | MalformedCall:
    if isinstance(call, WireMalformedCall):
        return MalformedCall(call.text, call.problem)
    try:
        arguments = json.loads(call.arguments)
    except (ValueError, RecursionError) as error:
        return MalformedCall(f"{call.name}({call.arguments})", f"the arguments are not JSON: {error}")
    if not isinstance(arguments, dict):
        return MalformedCall(f"{call.name}({call.arguments})", "the arguments are not a JSON object")
    return ToolCall(call.name, arguments)


def observed(number: int, observation: object, scores_answers: bool) -> Observed:
    """Return an environment's observation as the answer to request ``number``.

    Raises:
        TypeError: it is not an observation.
    """
    if not isinstance(observation, Observation):
        raise TypeError(f"it must return an Observation, not {short(observation)}")
    return Observed(number, _messages(observation.messages), tuple(observation.tools), scores_answers)


def stepped(number: int, result: object) -> Stepped:
    """Return the result of an environment's step as the answer to request ``number``.

    Raises:
        TypeError, ValueError: it is not the result of a step.
    """
    if not isinstance(result, StepResult) or not isinstance(result.observation, Observation):
        raise TypeError(f"it must return a StepResult, not {short(result)}")
    return Stepped(
        id=number,
        messages=_messages(result.observation.messages),
        reward=float(result.reward),
        done=bool(result.done),
        metrics={str(name): float(value) for name, value in result.metrics.items()},
        fault=None if result.fault is None else Fault(result.fault),
        calls=tuple(
            WireRecord(writable(record.tool), float(record.seconds), record.outcome, writable(record.problem))
            for record in result.calls
        ),
        errors=tuple(error for error in result.errors if isinstance(error, UsersError)),
        rewards={str(name): float(value) for name, value in result.rewards.items()},
    )


def _messages(messages: Sequence[object]) -> tuple[Message, ...]:
    for message in messages:
        if not isinstance(message, Message) or not isinstance(message.content, str):
            raise TypeError(f"its observation has the message {short(message)}, which must be a Message whose content is text")
    return tuple(
        msgspec.structs.replace(message, content=writable(message.content))
        for message in messages
        if isinstance(message, Message)
    )


def step_result(answer: Stepped) -> StepResult:
    """Return the result that a server's answer holds."""
    return StepResult(
        Observation(answer.messages),
        reward=answer.reward,
        done=answer.done,
        metrics=answer.metrics,
        fault=answer.fault,
        calls=tuple(CallRecord(call.tool, call.seconds, call.outcome, call.problem) for call in answer.calls),
        errors=answer.errors,
        rewards=answer.rewards,
    )
