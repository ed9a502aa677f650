"""Measurements in processes of their own, one after the other: what one leaves behind does not slow the next."""

import logging
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import TypeVar

from asyncrl.core.errors import ProcessDied
from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.folder import RunFolder
from asyncrl.run.launch import launch
from asyncrl.run.live_view import LiveView
from asyncrl.run.summary import Status, Summary

Answer = TypeVar("Answer")


class MeasurementInterrupted(Exception):
    """The user stopped a run."""


def in_own_process(work: Callable[..., Answer], *arguments: object) -> Answer:
    """Return or raise what ``work`` returns or raises in a fresh process. A run in it keeps its own deadlines.

    Raises:
        ProcessDied: the process was killed, or ended itself.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(work, *arguments).result()
        except BrokenProcessPool as error:
            raise ProcessDied(
                f"the process that ran {work.__module__}.{work.__qualname__} died; if the system killed it for want of memory, "
                "which `dmesg` tells, free some or measure a smaller model, else see the logs of the newest run folder"
            ) from error


def launch_here(recipe: Recipe, view: LiveView) -> tuple[RunFolder, Summary]:
    """Launch a run in this process, logging to its folder.

    Raises:
        MeasurementInterrupted: the user stopped it.
    """
    folder = RunFolder.create(recipe)
    log = folder.logs / "driver.log"
    logging.basicConfig(filename=log, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    with folder.driven(), view:
        summary, _ = launch(recipe, folder, view)
    if summary.status is Status.INTERRUPTED:
        raise MeasurementInterrupted
    return folder, summary
