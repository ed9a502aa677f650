"""The processes of a run that bring publications to nodes: one on each node that needs one.

A plan describes transports without calling anything, so Ray, which takes long to import, is imported by what calls.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from asyncrl.core.errors import AsyncRLError, ComponentFailed, DeadlineExceeded, ProcessDied

if TYPE_CHECKING:
    import ray

logger = logging.getLogger(__name__)

T = TypeVar("T")

_DRIVER = "the driver"
ANSWER_S = 60.0
"""The deadline of a call of a mirror that needs no work, in seconds."""


class PiecesLost(ComponentFailed):
    """What a mirror fetches is gone, because the mirror that handed it out died."""


class NodeMirrors:
    """The mirrors of a run, each made when its node is first asked for it, and made again when it is needed after it died.

    Args:
        make: makes the actor of the mirror of a node, given Ray's id of it and the file for its log.
        logs: the folder of the logs.
    """

    def __init__(self, make: Callable[[str, Path], Any], logs: Path) -> None:
        self._make, self._logs = make, logs
        self._mirrors: dict[str, NodeMirror] = {}

    def on(self, node: str) -> "NodeMirror":
        """Return the mirror of a node."""
        if node not in self._mirrors:
            log = self._logs / f"mirror-{node[:8]}.log"
            self._mirrors[node] = NodeMirror(node, self._make(node, log), log, self._died)
        return self._mirrors[node]

    async def leave(self, node: str) -> None:
        """End the mirror of a node, if it has one, and have it remove its files in memory."""
        mirror = self._mirrors.pop(node, None)
        if mirror is None:
            return
        try:
            await mirror.ask(lambda actor: actor.close.remote(), "close", ANSWER_S)
        except AsyncRLError as error:
            logger.warning("%s", error)
        mirror.kill()

    def _died(self, mirror: "NodeMirror") -> None:
        if self._mirrors.get(mirror.node) is mirror:  # not its successor, which another call may have had made
            del self._mirrors[mirror.node]

    async def close(self, seconds: float) -> None:
        """Have all remove their files in memory. One that does not answer is killed with the run."""
        closing = [mirror.ask(lambda actor: actor.close.remote(), "close", seconds) for mirror in list(self._mirrors.values())]
        for outcome in await asyncio.gather(*closing, return_exceptions=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, AsyncRLError):
                raise outcome


class NodeMirror:
    """The driver's handle of the mirror of ``node``.

    Args:
        died: is called when a call finds the process gone.
    """

    def __init__(self, node: str, actor: Any, log: Path, died: "Callable[[NodeMirror], None]") -> None:
        self.node, self._actor, self._log, self._died = node, actor, log, died

    def kill(self) -> None:
        """End its process, if there still is one."""
        import ray

        ray.kill(self._actor)

    async def ask(self, call: "Callable[[Any], ray.ObjectRef[T]]", what: str, seconds: float) -> T:
        """Call the mirror, and return its answer.

        Args:
            call: calls a method of the actor.
            what: it is to do, for errors.

        Raises:
            ProcessDied: it is gone; whoever asks the node's mirror again gets a successor.
            DeadlineExceeded: it did not answer within ``seconds``, and was killed; or as it raised itself.
            ComponentFailed: what it raised itself.
        """
        from asyncrl.run.host.ray_calls import ask

        remedy = f"see {self._log}; its node or the network to it may be overloaded, else raise deadlines.publish"
        of = f"the mirror of weights on node {self.node[:8]} to {what}"
        try:
            return await ask(call(self._actor), of=of, by=_DRIVER, seconds=seconds, remedy=remedy)
        except ProcessDied:
            self._died(self)
            raise
        except DeadlineExceeded as late:
            if late.waiter == _DRIVER:  # not the mirror itself: it is frozen or cut off, and would keep what it was given
                self.kill()
                self._died(self)
            raise


async def twice_if_it_dies(work: Callable[[], Awaitable[T]]) -> T:
    """Do ``work``, and once more if a mirror dies in it; if its whole node is gone, its successor does not come up either."""
    try:
        return await work()
    except ProcessDied:
        return await work()


def on_node(actor: Any, node: str, side_by_side: int) -> Any:
    """Return ``actor``, a class of Ray's, such that it starts on a node and works on so many calls at once."""
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    where = NodeAffinitySchedulingStrategy(node, soft=False)
    return actor.options(num_cpus=0, max_concurrency=side_by_side, scheduling_strategy=where)
