"""Does work for the driver in a process of its own, which tells how far it is as lines on its standard output.

This is for work that needs torch, which the driver does not load, and that must be interruptible. What always holds: the
process has ended when :func:`run_helper` returns, and it does not take the signals that stop a run, which are for the driver.
"""

import asyncio
import contextlib
import logging
import os
import re
import signal
import sys
from collections.abc import Callable, Iterator

import msgspec

from asyncrl.core.deadline import deadline
from asyncrl.core.errors import ComponentFailed
from asyncrl.core.files.file_errors import explained
from asyncrl.run.host.signals import sigterm_blocked

logger = logging.getLogger(__name__)

INTERRUPT_S = 2.0
"""How long an interrupted process may take to remove what it has half made."""

_OWN_ERROR = re.compile(r"^(\[rank\d+\]: )?(asyncrl|learners|generators)[\w.]*: ")
"""How Python begins the last line of an error of ours, and torch that of a rank; its text is meant to stand alone."""


@contextlib.contextmanager
def explaining() -> Iterator[None]:
    """In such a process, tell an error of the system as one of ours: the file, what is wrong, and what can be done about it."""
    try:
        yield
    except OSError as error:
        raise ComponentFailed(explained(error)) from error


async def run_helper(
    module: str, request: msgspec.Struct, seen: Callable[[bytes], None], *, task: str, seconds: float, **environment: str
) -> None:
    """Run ``python -m module REQUEST`` to its end.

    Args:
        request: what it is asked, sent as JSON in its arguments.
        seen: called with each line that it prints.
        task: what it does, for errors, e.g. ``making the tiny model``.
        seconds: how long it may take.
        environment: environment variables beside those of this process.

    Raises:
        DeadlineExceeded: it took longer.
        ComponentFailed: it failed; with the last line that it wrote to standard error.
    """
    with sigterm_blocked():  # the driver handles the signals that stop a run, and ends this process itself
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", module, msgspec.json.encode(request).decode()),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            # Threads that spin while they wait for each other make this several times slower on a busy machine.
            env={**os.environ, "OMP_WAIT_POLICY": "passive", **environment},
            start_new_session=True,
        )
    assert process.stdout is not None
    assert process.stderr is not None
    errors = asyncio.create_task(process.stderr.read())
    try:
        async with deadline(seconds, waiter="the driver", owner=task, remedy="raise deadlines.start"):
            async for line in process.stdout:
                seen(line)
            await process.wait()
    finally:
        await _end(process)
    if process.returncode:
        lines = (await errors).decode(errors="replace").strip().splitlines()
        logger.error("%s failed:\n%s", task, "\n".join(lines))
        reason = _OWN_ERROR.sub("", lines[-1]) if lines else f"exit code {process.returncode}"
        raise ComponentFailed(f"{task} failed: {reason}; see logs/driver.log")


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the process, after giving it a moment to remove what it has half made."""
    if process.returncode is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), INTERRUPT_S)
    if process.returncode is None:
        process.kill()
        await process.wait()
