"""Finds the model that a recipe names: a Hugging Face folder, or the tiny model, which is made if it is not there.

The tiny model is made in a separate process: training it in the driver would load torch there, and could not be
interrupted.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from pathlib import Path

import msgspec

from asyncrl.core.deadline import deadline
from asyncrl.core.errors import ComponentFailed
from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.live_view import LiveView
from asyncrl.run.model_shape import TINY
from asyncrl.run.model_sources import fetched, is_remote
from asyncrl.run.stopping import sigterm_blocked
from asyncrl.run.warm_up import Made, Request, Step

logger = logging.getLogger(__name__)

INTERRUPT_S = 2.0


async def resolve_model(recipe: Recipe, view: LiveView) -> Path:
    """Return the path of the model's Hugging Face folder; the tiny model is made first if it is not there.

    Raises:
        ComponentFailed: the tiny model could not be made.
        RecipeError: a model of the hub could not be fetched.
        DeadlineExceeded: fetching it took too long.
    """
    if is_remote(recipe):
        view.phase("Fetching the model from the Hugging Face hub")
    if recipe.model.path == TINY:
        # For the user's own environment the warm-up uses the calculator, which teaches calling a tool and little else.
        options = recipe.environment.options if recipe.environment.name == "calculator" else {}
        return await _make_tiny(Request(options, recipe.seed), recipe.deadlines.start, view)
    return await fetched(recipe.model.path, "model.path", recipe.deadlines.start)


async def _end(process: asyncio.subprocess.Process) -> None:
    """End the warm-up process, after giving it a moment to remove its half-made folder."""
    if process.returncode is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), INTERRUPT_S)
    if process.returncode is None:
        process.kill()
        await process.wait()


async def _make_tiny(request: Request, seconds: float, view: LiveView) -> Path:
    view.phase("Making the tiny model")
    with sigterm_blocked():  # the driver handles the signals that stop a run, and ends this process itself
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "asyncrl.run.warm_up", msgspec.json.encode(request).decode()),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            # Threads that spin while they wait for each other make this several times slower on a busy machine.
            env={**os.environ, "OMP_WAIT_POLICY": "passive"},
            start_new_session=True,
        )
    assert process.stdout is not None
    assert process.stderr is not None
    errors = asyncio.create_task(process.stderr.read())
    path: Path | None = None
    try:
        remedy = "raise deadlines.start"
        async with deadline(seconds, waiter="the driver", owner="the tiny model to be made", remedy=remedy):
            async for line in process.stdout:
                match msgspec.json.decode(line, type=Step | Made):
                    case Step(fraction=fraction, text=text):
                        view.warmup(fraction, text)
                    case Made(path=made):
                        path = Path(made)
            await process.wait()
    finally:
        await _end(process)
    if path is None:
        lines = (await errors).decode(errors="replace").strip().splitlines()
        logger.error("making the tiny model failed:\n%s", "\n".join(lines))
        why = lines[-1] if lines else f"exit code {process.returncode}"
        raise ComponentFailed(
            f"making the tiny model failed: {why}; see logs/driver.log; the model is made in ~/.cache/asyncrl, or in "
            "the folder that ASYNCRL_CACHE names"
        )
    return path
