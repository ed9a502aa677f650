"""Awaits calls of Ray actors, each with a deadline; turns their errors and deaths into ones that a user understands."""

import re
from typing import TypeVar

import ray
from ray.exceptions import (
    ActorPlacementGroupRemoved,
    ActorUnavailableError,
    ActorUnschedulableError,
    GetTimeoutError,
    LocalRayletDiedError,
    NodeDiedError,
    ObjectLostError,
    OutOfMemoryError,
    RayActorError,
    RayError,
    RayTaskError,
    RuntimeEnvSetupError,
)

from asyncrl.core.deadline import deadline
from asyncrl.core.errors import AsyncRLError, ComponentFailed, DeadlineExceeded, NodeLost, ProcessDied, ProcessUnreachable
from asyncrl.core.files.file_errors import explained
from asyncrl.core.process.control_groups import killed_for_memory
from asyncrl.core.text import pluralize

T = TypeVar("T")

_NODE_GONE = (ActorUnschedulableError, ActorPlacementGroupRemoved, NodeDiedError, ObjectLostError, LocalRayletDiedError)
"""What Ray raises when a node is lost while an actor is placed on it, or an answer is on its way."""
_MEMORY_IN_USE = re.compile(r"was ([\d.]+ ?GB)(?: used)? / ([\d.]+ ?GB)")
_FREE_MEMORY = "end other programs there, or lower generators.max_running or the number of engines"
_KILLED_BEFORE = killed_for_memory()
_MEMORY_USER = re.compile(r"^\d+[\t ]+([\d.]+)[\t ]+(\S.*)$", re.MULTILINE)
ANSWER_DEADLINE_S = 60.0
"""The deadline of a call that needs no work, in seconds."""

INLINE_BYTES = 64 << 10
"""Answers of at most so many bytes come in Ray's messages. Larger ones go through its object stores, which take memory of the
memory file system as they are written to: if it has none left, the system ends Ray's processes on that node."""

AGAIN = -1
"""The ``max_task_retries`` of calls that Ray makes again if the connection breaks, as long as the process lives.

Only for calls that do no harm if they are made twice.
"""


def this_node() -> str:
    """Ray's id of the node that this process is on."""
    return str(ray.get_runtime_context().get_node_id())


async def ask(answer: "ray.ObjectRef[T]", *, of: str, by: str, seconds: float, remedy: str) -> T:
    """Await an actor's answer.

    Args:
        answer: what the remote call returned.
        of: who is asked and for what, e.g. ``generator-0 to start``.
        by: who asks.
        seconds: how long the answer may take.

    Raises:
        DeadlineExceeded: no answer in time.
        ProcessDied: the actor died, or its node is gone (``NodeLost``), or it cannot be reached now (``ProcessUnreachable``).
        ComponentFailed: the actor raised an error that is not the project's own.
    """
    async with deadline(seconds, waiter=by, owner=of, remedy=remedy):
        return await watch(answer, of=of)


async def ask_buffer(answer: "ray.ObjectRef[T]", *, of: str, by: str, seconds: float, remedy: str) -> T:
    """Await an answer of the buffer's actor, as :func:`ask` does. No other process can take its place if it died.

    Raises:
        ComponentFailed: the actor died, or as for :func:`ask`; never ``ProcessDied``.
    """
    try:
        return await ask(answer, of=of, by=by, seconds=seconds, remedy=remedy)
    except ProcessDied as death:
        raise ComponentFailed(str(death)) from death


def ask_blocking(answer: "ray.ObjectRef[T]", *, of: str, by: str, seconds: float, remedy: str) -> T:
    """Wait for an actor's answer in a thread without an event loop, as :func:`ask` does.

    Raises:
        DeadlineExceeded: no answer in time.
        ComponentFailed: the actor died, or its node is gone.
        AsyncRLError: what the actor raised.
    """
    try:
        return ray.get(answer, timeout=seconds)
    except GetTimeoutError as error:
        raise DeadlineExceeded(by, of, seconds, remedy) from error
    except RayError as error:
        problem = translated(error, of)
        raise (ComponentFailed(f"{problem}; {remedy}") if isinstance(problem, ProcessDied) else problem) from error


async def watch(answer: "ray.ObjectRef[T]", *, of: str) -> T:
    """Await an answer without a deadline: the call may last as long as the run. Raises what else :func:`ask` raises."""
    try:
        return await answer
    except RayError as error:
        raise translated(error, of) from error


def translated(error: RayError, of: str) -> AsyncRLError:
    """Return an error that a user understands for one that Ray raised instead of an answer; ``of`` is as for :func:`ask`."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    if isinstance(error, RayTaskError):
        cause = error.cause
        if isinstance(cause, OSError):
            return ComponentFailed(f"{of}: {explained(cause)}")
        return cause if isinstance(cause, AsyncRLError) else ComponentFailed(f"{of}: {type(cause).__name__}: {cause}")
    if isinstance(error, RuntimeEnvSetupError):
        remedy = "check the disk of that node, or name in .rayignore what it does not need"
        return ComponentFailed(f"{of}: Ray cannot bring the current folder to its node ({lines[-1]}); {remedy}")
    if isinstance(error, ActorUnavailableError):
        return ProcessUnreachable(f"{of}: its process cannot be reached ({lines[0]})")
    if isinstance(error, OutOfMemoryError):
        return ProcessDied(f"{of}: Ray ended its process, since its node has no memory left{_memory(str(error))}; {_FREE_MEMORY}")
    if with_node := [line.strip() for line in lines if isinstance(error, RayActorError) and "its node has died" in line]:
        return NodeLost(f"{of}: its node is gone ({with_node[0]})")
    if isinstance(error, RayActorError):
        # If the actor's constructor raised, Ray puts that error last, after the traceback.
        return ProcessDied(f"{of}: its process died ({lines[-1 if 'creation task' in lines[0] else 0]}){_killed()}")
    if isinstance(error, _NODE_GONE):
        return NodeLost(f"{of}: its node is gone ({lines[0]})")
    return ComponentFailed(f"{of}: {type(error).__name__}: {lines[0]}")


def _killed() -> str:
    """Whether it may have been the system that ended a process: no process learns why another one died."""
    killed = killed_for_memory() - _KILLED_BEFORE
    if killed <= 0:
        return ""
    return f"; meanwhile the system ended {pluralize(killed, 'program')} here for want of memory: {_FREE_MEMORY}"


def _memory(message: str) -> str:
    """What Ray says of its node's memory: how much is used, and by which processes most."""
    used = _MEMORY_IN_USE.search(message)
    users = [f"{gb} GB by `{command.strip()}`" for gb, command in _MEMORY_USER.findall(message)[:3]]
    said = [*([f"{used[1]} of {used[2]} used"] if used else []), *([f"most: {', '.join(users)}"] if users else [])]
    return f" ({'; '.join(said)})" if said else ""
