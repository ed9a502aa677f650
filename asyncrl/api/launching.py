"""Launches runs from Python, and lets callbacks follow them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from asyncrl.api.driver_process import Ended, drive, shown, stop
from asyncrl.api.following import completed, following
from asyncrl.api.given_classes import Written, changes_for, written
from asyncrl.api.recipes import Overrides, RecipeLike
from asyncrl.api.run import Callback, Run
from asyncrl.cli.driving.messages import LaunchRequest
from asyncrl.cli.driving.start import start_driver
from asyncrl.core.errors import RecipeError

if TYPE_CHECKING:
    from asyncrl.envs.base import Environment

T = TypeVar("T")
AWAKE_S = 0.5
"""How often an event loop that waits for a run wakes up."""


def launch(
    recipe: RecipeLike,
    overrides: Overrides = (),
    *,
    environment: type[Environment] | None = None,
    loss: Callable[..., Any] | None = None,
    schedule: Callable[..., Any] | None = None,
    callbacks: Sequence[Callback] = (),
    tags: Sequence[str] = (),
    quiet: bool = False,
) -> Run:
    """Run a recipe to its end, showing what ``asyncrl launch`` shows.

    The run is driven by a process of its own. So it may be launched from any thread and under a running event loop, as in a
    notebook. If this is the main thread, an interrupt ends it in order; Python interrupts no other thread.

    Args:
        recipe: path of a ``.yaml`` file, the name of a shipped recipe, a dictionary of what such a file would hold, e.g.
            ``{"defaults": ["quickstart", "_self_"], "steps": 20}``, or an ``asyncrl.Recipe``. Classes and functions may stand
            where it names them, those of a notebook's cells too.
        overrides: changes as on the command line, e.g. ``["learner.lr=1e-4", "steps=20"]``, or as a dictionary, e.g.
            ``{"learner": {"lr": 1e-4}, "steps": 20}``.
        environment: a class, in place of the recipe's environment.
        loss: a function, in place of the recipe's loss; see docs/how-to/own-algorithms.md.
        schedule: a function, in place of the learning rate's schedule.
        callbacks: each is called here with every event and the ``Run``; an error that one raises ends the run in order, and is
            raised here.
        tags: words that ``asyncrl runs`` finds the run by.
        quiet: show only warnings, and how the run ended.

    Raises:
        RecipeError: the recipe was refused; nothing was started. Further problems are its notes.
        RunFailed: the run failed; the error has the reason and the folder.
        RunInterrupted: a signal to the run's own process stopped it.
        ComponentFailed: the process that drives the run could not begin.
    """
    watch = following(Run, callbacks)
    with written(recipe, overrides, changes_for(environment, loss, schedule)) as given:
        request = _request(given, recipe, tags, quiet)
        return completed(drive(request, watch), Run)


@asynccontextmanager
async def running(
    recipe: RecipeLike,
    overrides: Overrides = (),
    *,
    environment: type[Environment] | None = None,
    loss: Callable[..., Any] | None = None,
    schedule: Callable[..., Any] | None = None,
    tags: Sequence[str] = (),
    quiet: bool = False,
) -> AsyncIterator[Run]:
    """Run a recipe while this context is open, whose body may follow it: ``async for event in run.events()``.

    The context ends when the run has ended. If its body raises something, or is cancelled, the run is stopped in order first.

    Args and errors: see :func:`launch`.
    """
    with written(recipe, overrides, changes_for(environment, loss, schedule)) as given:
        request = _request(given, recipe, tags, quiet)
        driver = start_driver(request)
        with driver.answers, shown(driver.process):
            try:
                run = Run((await _in_thread(driver.began)).folder)._driven_by(driver.process)
                yield run
                await _in_thread(driver.process.wait)
            finally:
                if driver.process.poll() is None:
                    await asyncio.shield(asyncio.to_thread(stop, driver.process))
    completed(Ended(run.path, driver.process.returncode), Run)


async def _in_thread(call: Callable[[], T]) -> T:
    """Wait for a call in a thread; if this is cancelled, the call goes on there.

    The loop wakes up now and then, because a Jupyter kernel does not wake it for an interrupt of the cell: it cancels the cell
    when the loop wakes up by itself.
    """
    called = asyncio.ensure_future(asyncio.to_thread(call))
    try:
        while not called.done():
            await asyncio.wait([called], timeout=AWAKE_S)
        return called.result()
    finally:
        called.cancel()


def _request(given: Written, recipe: RecipeLike, tags: Sequence[str], quiet: bool) -> LaunchRequest:
    """Return what the process that drives a run is asked.

    Raises:
        RecipeError: the tags are one text, whose letters would be taken for them.
    """
    if isinstance(tags, str):
        raise RecipeError("", f"tags is the text {tags!r}", f"give a list of words, {tags.split()!r}")
    named = os.fspath(recipe) if isinstance(recipe, str | os.PathLike) else ""
    return LaunchRequest(given.recipe, given.overrides, code=given.code, named=named, tags=tuple(tags), quiet=quiet)
