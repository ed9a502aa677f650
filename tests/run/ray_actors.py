"""What tests do with nodes and actors of Ray."""

import os
import select
from typing import Any, ClassVar

import pytest
import ray
from ray.cluster_utils import Cluster
from ray.exceptions import RayActorError

MINUTE = 60.0


class NodesHere(Cluster):
    """Nodes that this process starts, and refers to for good.

    Without that, only what Ray does at exit refers to a node that was shut down. Since Python 3.13, a process that
    multiprocessing forks forgets what its parent does at exit, and the node's client cannot be destroyed in a fork: it would
    crash, or hang.
    """

    _started: ClassVar[list[Any]] = []

    def add_node(self, wait: bool = True, **options: Any) -> Any:
        node = super().add_node(wait, **options)
        self._started.append(node)
        return node


def end_actor(actor: ray.actor.ActorHandle) -> None:
    """Kill an actor of this machine, and wait until its process is gone: after ``ray.kill`` it may answer for a while."""
    process = os.pidfd_open(ray.get(actor.__ray_call__.remote(lambda _: os.getpid()), timeout=MINUTE))
    ray.kill(actor)
    assert select.select([process], [], [], MINUTE)[0], "an actor that was killed lives on"
    os.close(process)
    with pytest.raises(RayActorError):
        ray.get(actor.__ray_ready__.remote(), timeout=MINUTE)
