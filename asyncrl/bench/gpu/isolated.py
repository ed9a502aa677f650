"""Runs each measurement in a new process with a deadline, and without any package beyond the learner's own."""

import os
import threading
import traceback
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.context import ForkContext, SpawnContext
from typing import Any, TypeVar
from unittest import mock

from asyncrl.core.errors import AsyncRLError
from asyncrl.core.process.parent_watch import die_with_parent

Answer = TypeVar("Answer")

END_S = 5.0
"""How long a process that has answered may take to end."""
_STARTING = threading.Lock()
"""Held while a process is started, which is given this one's environment: threads start several side by side."""


class MeasurementFailed(AsyncRLError):
    """A measurement raised an error, died, or did not finish in time."""


def isolated(work: Callable[..., Answer], *arguments: object, seconds: float, gpus: bool = True, forked: bool = False) -> Answer:
    """Call ``work`` in a new process, and return what it returns.

    Args:
        work: an importable function, whose arguments and result can be pickled.
        seconds: how long it may take.
        gpus: whether it sees the GPUs.
        forked: whether the process is a fork of this one, which spares it the imports that this one has made. Not where there is
            a GPU, which no fork may use; and this process must not have computed anything with torch, whose threads do not
            survive in a fork.

    Raises:
        MeasurementFailed: it raised an error, died, or did not finish in time.
    """
    context: ForkContext | SpawnContext = get_context("fork") if forked else get_context("spawn")
    with _STARTING, mock.patch.dict(os.environ, {} if gpus else {"CUDA_VISIBLE_DEVICES": ""}):
        receiver, sender = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(sender, work, arguments), daemon=False)
        process.start()
        sender.close()  # no other fork may inherit it: this process would not see that the first one has died
    name = f"{work.__module__.rpartition('.')[2]}.{work.__name__}"
    try:
        if not receiver.poll(seconds):
            raise MeasurementFailed(f"{name} was ended, because it had not finished after {seconds:.0f} s")
        succeeded, answer = receiver.recv()
        process.join(END_S)
    except EOFError:
        process.join(END_S)
        raise MeasurementFailed(f"the process of {name} died with exit code {process.exitcode}") from None
    finally:
        if process.is_alive():
            process.kill()
            process.join()
        receiver.close()
    if not succeeded:
        raise MeasurementFailed(f"{name}: {answer}")
    found: Answer = answer
    return found


def _work(sender: Connection, work: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    die_with_parent()
    if _STARTING.locked():
        _STARTING.release()  # a fork has it as it was at that moment
    try:
        answer = (True, work(*arguments))
    except Exception as error:  # noqa: BLE001 - raised where it is waited for
        answer = (False, f"{type(error).__name__}: {error} ({place_of(error)})")
    sender.send(answer)
    sender.close()


def place_of(error: BaseException) -> str:
    """File and line where an error was raised."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{os.path.basename(place.filename)}, line {place.lineno}"
