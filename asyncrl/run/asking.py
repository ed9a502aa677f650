"""Awaits calls of Ray actors, each with a deadline; turns their errors and deaths into ones that a user understands."""

from typing import TypeVar

import ray
from ray.exceptions import (
    ActorUnavailableError,
    ActorUnschedulableError,
    NodeDiedError,
    ObjectLostError,
    RayActorError,
    RayTaskError,
)

from asyncrl.core.deadline import deadline
from asyncrl.core.errors import AsyncRLError, ComponentFailed, NodeLost, ProcessDied, ProcessUnreachable

T = TypeVar("T")

NODE_GONE = (ActorUnschedulableError, NodeDiedError, ObjectLostError)
"""What Ray raises beside ``RayActorError`` when a node is lost while an actor is placed on it, or an answer is on its way."""
ANSWER_DEADLINE_S = 60.0
"""The deadline of a call that needs no work, in seconds."""


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


async def watch(answer: "ray.ObjectRef[T]", *, of: str) -> T:
    """Await an answer without a deadline: the call may last as long as the run. Raises what else :func:`ask` raises."""
    try:
        return await answer
    except RayTaskError as error:
        if isinstance(error.cause, AsyncRLError):
            raise error.cause from error
        raise ComponentFailed(f"{of}: {type(error.cause).__name__}: {error.cause}") from error
    except ActorUnavailableError as error:
        raise ProcessUnreachable(f"{of}: its process cannot be reached ({str(error).strip().splitlines()[0]})") from error
    except RayActorError as error:
        lines = str(error).strip().splitlines()
        # If the actor's constructor raised, Ray puts that error last, after the traceback.
        reason = lines[-1] if "creation task" in lines[0] else lines[0]
        raise ProcessDied(f"{of}: its process died ({reason})") from error
    except NODE_GONE as error:
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise NodeLost(f"{of}: its node is gone ({reason})") from error
