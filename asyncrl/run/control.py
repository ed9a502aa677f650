"""The way into a run that goes on: calls to its driver, over TCP on the driver's machine.

What always holds: only who may read the file ``control`` in the run folder gets in, and that is the run's own user; the file is
there only while the driver answers, or after it was killed.
"""

import logging
import os
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Protocol

import msgspec

from asyncrl.core.deadline import deadline
from asyncrl.core.errors import RecipeError
from asyncrl.core.files.file_errors import explained, naming
from asyncrl.core.recipe.schema import Recipe
from asyncrl.rpc.client import ConnectionLost, RpcClient
from asyncrl.rpc.server import RpcServer
from asyncrl.rpc.wire import Endpoint, signatures
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.host.ray_calls import ANSWER_DEADLINE_S

logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"


class Pools(Protocol):
    """The generators of a run; see :class:`asyncrl.run.pool.generator_pool.GeneratorPool`."""

    @property
    def sizes(self) -> Mapping[str, int]:
        """How many engines each pool is to have now."""
        ...

    async def scale(self, pool: str, size: int) -> str:
        """Change how many engines a pool is to have."""
        ...


class RunControl:
    """Answers what is asked of a run that goes on, and has the run's recipe say so: a resume begins with what was asked for.

    Args:
        recipe: that of the run, as its folder has it.
    """

    def __init__(self, pools: Pools, recipe: Recipe, folder: RunFolder) -> None:
        self._pools, self._recipe, self._folder = pools, recipe, folder

    async def scale(self, pool: str, size: int) -> str:
        """Change the size of a pool, and return what happens now; raises what the pools raise."""
        answer = await self._pools.scale(pool, size)
        generators = self._recipe.generators.resized(self._pools.sizes)
        try:
            self._folder.keep_recipe(msgspec.structs.replace(self._recipe, generators=generators))
        except OSError as error:  # a full disk is no reason to refuse what has begun
            logger.warning("a resume will not know of it: %s", error)
            return (
                f"{answer}. The run's recipe.yaml could not be written ({error.strerror}), so a resume begins with what it says"
            )
        return answer


METHODS = signatures(RunControl)
"""The calls that a driver answers."""


class _Address(msgspec.Struct, frozen=True):
    """The content of the file ``control``: the name of the driver's machine, and where it listens there."""

    machine: str
    endpoint: Endpoint


@asynccontextmanager
async def controlled(folder: RunFolder, control: RunControl) -> AsyncIterator[None]:
    """While this context is open, answer what is asked of the run in ``folder``."""
    server = RpcServer(control, METHODS, "the run's control")
    address = _Address(socket.gethostname(), await server.start(LOOPBACK))
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
    remedy = "its machine may be overloaded; see logs/driver.log of the run"
    async with deadline(ANSWER_DEADLINE_S, waiter="asyncrl scale", owner="the run's driver to answer", remedy=remedy):
        try:
            client = await RpcClient.connect(address.endpoint, METHODS)
            try:
                return await client.call(RunControl.scale, pool, size)
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


def _not_now(folder: RunFolder) -> RecipeError:
    return RecipeError("", f"the run in {str(folder.path)!r} is starting or ending", "try again once it trains")
