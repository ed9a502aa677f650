"""Runs each measurement in a new process, so that what one leaves in memory does not affect the next."""

import logging
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import TypeVar

from asyncrl.core.errors import ProcessDied
from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.launch import launch
from asyncrl.run.measures.summary import Status, Summary
from asyncrl.run.views.live_view import LiveView

Answer = TypeVar("Answer")


class MeasurementInterrupted(Exception):
    """The user stopped a run that was being measured."""


def in_own_process(work: Callable[..., Answer], *arguments: object) -> Answer:
    """Call ``work`` in a new process, and return or raise what it returns or raises. A run in it keeps its own deadlines.

    Raises:
        ProcessDied: the process was killed, or it exited without a result.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(work, *arguments).result()
        except BrokenProcessPool as error:
            raise ProcessDied(
                f"the process that ran {work.__module__}.{work.__qualname__} died; if the system killed it for lack of memory "
                "(see `dmesg`), free memory or measure a smaller model, otherwise see the logs in the newest run folder"
            ) from error


def launch_here(recipe: Recipe, view: LiveView) -> tuple[RunFolder, Summary]:
    """Launch a run in this process and log to its folder.

    Raises:
        MeasurementInterrupted: the user stopped the run.
    """
    folder = RunFolder.create(recipe)
    log = folder.logs / "driver.log"
    logging.basicConfig(filename=log, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with folder.driven(), view:
        summary, _ = launch(recipe, folder, view)
    if summary.status is Status.INTERRUPTED:
        raise MeasurementInterrupted
    return folder, summary
