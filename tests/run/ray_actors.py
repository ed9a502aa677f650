"""What tests do to actors of Ray."""

import os
import select

import pytest
import ray
from ray.exceptions import RayActorError

MINUTE = 60.0


def end_actor(actor: ray.actor.ActorHandle) -> None:
    """Kill an actor of this machine, and wait until its process is gone: after ``ray.kill`` it may answer for a while."""
    process = os.pidfd_open(ray.get(actor.__ray_call__.remote(lambda _: os.getpid()), timeout=MINUTE))
    ray.kill(actor)
    assert select.select([process], [], [], MINUTE)[0], "an actor that was killed lives on"
    os.close(process)
    with pytest.raises(RayActorError):
        ray.get(actor.__ray_ready__.remote(), timeout=MINUTE)
