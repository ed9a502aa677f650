"""The way into a run that goes on: calls to its driver, over TCP on the driver's machine.

What always holds: only who may read the file ``control`` in the run folder gets in, and that is the run's own user; the file is
there only while the driver answers, or after it was killed.
"""

import asyncio
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar

import msgspec

from asyncrl import __version__
from asyncrl.core.deadline import deadline
from asyncrl.core.errors import RecipeError
from asyncrl.core.files.file_errors import explained, naming
from asyncrl.core.recipe.generators import MAIN_POOL
from asyncrl.core.recipe.knobs import bounds_widened, knob_of
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.recipe.section import AUTO
from asyncrl.rpc.client import ConnectionLost, RpcClient
from asyncrl.rpc.server import RpcServer
from asyncrl.rpc.wire import Endpoint, protocol_of, signatures
from asyncrl.run.early_end import EarlyEnd
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.measures.metric_names import metric_name

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
BEGIN_S = 60.0
"""How long a driver that has just begun may take until it can be asked something; it imports Ray meanwhile."""
_ANSWER_S = 60.0
"""How long a driver may take to answer. Whoever asks it imports no Ray for that, which takes seconds."""
_LOOK_S = 0.2
MOST_STEP = 2**31 - 1
"""The last step that metrics may be of."""
_ENDING = "is ending already"
T = TypeVar("T")


class Pools(Protocol):
    """The generators of a run; see :class:`asyncrl.run.pool.generator_pool.GeneratorPool`."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """How many engines each pool is to have now."""
        ...

    async def scale(self, pool: str, size: int) -> str:
        """Change how many engines a pool is to have."""
        ...

    async def bound(self, pools: Collection[str], episodes: int) -> None:
        """Change how many episodes each engine of some pools plays at once."""
        ...


class RunControl:
    """Answers what is asked of a run that goes on, and has the run's recipe say so: a resume begins with what was asked for.

    Args:
        recipe: that of the run, as its folder has it.
        early: is told if the run is to end before its last step.
    """

    def __init__(self, recipe: Recipe, folder: RunFolder, early: EarlyEnd) -> None:
        self._recipe, self._folder, self._early = recipe, folder, early
        self._pools: Pools | None = None
        self._log: Callable[[int, Mapping[str, float]], object] | None = None
        self._over = False

    def begin(self, pools: Pools, log: Callable[[int, Mapping[str, float]], object]) -> None:
        """Training begins: pools may change, and from now on ``log`` records metrics of a step."""
        self._pools, self._log = pools, log

    def end(self) -> None:
        """The last training step is over."""
        self._pools, self._over = None, True

    async def scale(self, pool: str, size: int) -> str:
        """Change the size of a pool, and return what happens now; raises what the pools raise."""
        pools = self._changeable()
        answer = await pools.scale(pool, size)
        asked = msgspec.structs.replace(self._recipe, generators=self._recipe.generators.resized(pools.sizes))
        kept = bounds_widened(asked)
        knob = knob_of(pool)
        before, bounds = (each.tune and each.tune.knobs.get(knob) for each in (asked, kept))
        if bounds and bounds != before:
            answer += f". That is beyond tune.knobs, whose bounds of {knob} are {list(bounds)} after a resume"
        unknown = self._keep(kept)
        return answer if unknown is None else f"{answer}. {unknown}"

    @property
    def at_once(self) -> int:
        """``generators.max_running`` as it is now."""
        return self._recipe.generators.max_running

    async def bound(self, episodes: int) -> None:
        """Change ``generators.max_running``, within what the engines were made for; raises what the pools raise."""
        generators, pools = self._recipe.generators, self._changeable()
        theirs = [name for name in generators.by_pool if name == MAIN_POOL or generators.pools[name].max_running is None]
        await pools.bound(theirs, episodes)
        generators = msgspec.structs.replace(generators.resized(pools.sizes), max_running=episodes)
        self._keep(msgspec.structs.replace(self._recipe, generators=generators))

    def paced(self, depth: int) -> None:
        """Note that the pipeline depth was turned. ``auto`` stays: how deep it is then, the buffer alone knows."""
        buffer = self._recipe.buffer
        if buffer.pipeline_depth != AUTO:
            self._keep(msgspec.structs.replace(self._recipe, buffer=msgspec.structs.replace(buffer, pipeline_depth=depth)))

    def _keep(self, recipe: Recipe) -> str | None:
        """Have the recipe say what has begun; a full disk is no reason to refuse that, and then this returns what follows."""
        self._recipe = recipe
        try:
            self._folder.keep_recipe(recipe)
        except OSError as error:
            logger.warning("a resume will not know of it: %s", error)
            return f"The run's recipe.yaml could not be written ({error.strerror}), so a resume begins with what it says"
        return None

    async def finish(self, reason: str) -> str:
        """End the run after the training step under way, as if it were its last: evaluated, and with its model saved.

        Returns:
            when it ends, as the end of a sentence.
        """
        if self._over:  # whoever follows the run learns of its last step when that is over
            return _ENDING
        trains = self._pools is not None
        self._early.ask(reason, trains=trains)
        return "ends after the training step under way" if trains else "is starting, and ends after one training step"

    async def log(self, step: int, values: dict[str, float]) -> None:
        """Track metrics of whoever follows the run, also after the last step, of which they learn when it is over.

        Nothing of them ends the run: a name that MLflow does not take is respelt, and a step that it does not is refused.
        """
        if not 0 <= step <= MOST_STEP:
            raise RecipeError("", f"{step} is no training step", f"give a whole number from 0 to {MOST_STEP:,}")
        if self._log is None:
            raise _not_now(self._folder)
        self._log(step, {metric_name(name): value for name, value in values.items()})

    def _changeable(self) -> Pools:
        if self._pools is None:
            raise _not_now(self._folder)
        return self._pools


METHODS = signatures(RunControl)
"""The calls that a driver answers."""
_PROTOCOL = protocol_of(METHODS)


class _Address(msgspec.Struct, frozen=True):
    """The content of the file ``control``: the driver's machine, where it listens there, its version, and how it is asked."""

    machine: str
    endpoint: Endpoint
    version: str = ""
    protocol: str = ""


@asynccontextmanager
async def controlled(folder: RunFolder, control: RunControl) -> AsyncIterator[None]:
    """While this context is open, answer what is asked of the run in ``folder``."""
    server = RpcServer(control, METHODS, "the run's control")
    address = _Address(socket.gethostname(), await server.start(LOOPBACK), __version__, _PROTOCOL)
    path = folder.control
    path.unlink(missing_ok=True)  # of a driver that was killed
    written = path.with_name(f".{path.name}.new")
    written.unlink(missing_ok=True)
    with naming(path), os.fdopen(os.open(written, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(msgspec.json.encode(address))
    written.rename(path)
    try:
        yield
    finally:
        server.close()
        try:
            path.unlink(missing_ok=True)
        except OSError as error:  # what ended the run matters more, and the next driver removes it
            logger.warning("%s", explained(error))


async def scale(run: Path, pool: str, size: int) -> str:
    """Ask the driver of the run in folder ``run`` to change the size of a pool; returns its answer.

    Raises what :func:`ask` raises.
    """
    return await ask(run, RunControl.scale, pool, size)


async def finish(run: Path, reason: str) -> str:
    """Ask the driver of the run in folder ``run`` to end it after the step under way, or after one if it is starting.

    Returns when it ends, as :meth:`RunControl.finish` does, also if it ends while it is asked; raises what :func:`ask` raises.
    """
    folder, until = RunFolder.find(run), time.monotonic() + BEGIN_S
    goes_on = folder.is_driven
    while goes_on and not folder.control.exists() and time.monotonic() < until:
        await asyncio.sleep(_LOOK_S)  # no event says that another process listens
        if not folder.is_driven:
            return _ENDING
    try:
        return await ask(run, RunControl.finish, reason)
    except RecipeError:
        if goes_on and not (folder.is_driven and folder.control.exists()):
            return _ENDING
        raise


async def log(run: Path, step: int, values: Mapping[str, float]) -> None:
    """Ask the driver of the run in folder ``run`` to track metrics; raises what :func:`ask` raises."""
    await ask(run, RunControl.log, step, dict(values))


async def ask(run: Path, method: Callable[..., Coroutine[Any, Any, T]], *arguments: Any) -> T:
    """Ask the driver of the run in folder ``run`` something, and return its answer.

    Raises:
        RecipeError: there is no run, it does not go on, or it refuses.
        DeadlineExceeded: the driver does not answer.
    """
    folder = RunFolder.find(run)
    if not folder.is_driven:
        raise RecipeError("", f"the run in {str(run)!r} is not running", "launch it, or resume it with asyncrl launch --resume")
    address = _read(folder)
    if address.machine != socket.gethostname():
        problem = f"the run in {str(run)!r} is driven from {address.machine}, and this is {socket.gethostname()}"
        raise RecipeError("", problem, f"run the command on {address.machine}")
    if address.protocol != _PROTOCOL:
        raise _other_version(folder, address)
    remedy = "its machine may be overloaded; see logs/driver.log of the run"
    async with deadline(_ANSWER_S, waiter="asyncrl", owner="the run's driver to answer", remedy=remedy):
        try:
            client = await RpcClient.connect(address.endpoint, METHODS)
            try:
                return await client.call(method, *arguments)
            finally:
                client.close()
        except ConnectionLost as error:
            raise _not_now(folder) from error


def _read(folder: RunFolder) -> _Address:
    try:
        return msgspec.json.decode(folder.control.read_bytes(), type=_Address)
    except PermissionError as error:
        problem = f"{str(folder.control)!r} may only be read by the user who launched the run"
        raise RecipeError("", problem, "run the command as that user") from error
    except (OSError, msgspec.DecodeError) as error:
        raise _not_now(folder) from error


def _other_version(folder: RunFolder, address: _Address) -> RecipeError:
    theirs = f"asyncrl {address.version} (protocol {address.protocol})" if address.version else "an older asyncrl"
    problem = f"the run in {str(folder.path)!r} is driven by {theirs}, and this is asyncrl {__version__} (protocol {_PROTOCOL})"
    remedy = "use the version that drives it, or end the run with Ctrl-C, and resume it with this one"
    return RecipeError("", problem, remedy)


def _not_now(folder: RunFolder) -> RecipeError:
    return RecipeError("", f"the run in {str(folder.path)!r} is starting or ending", "try again once it trains")
