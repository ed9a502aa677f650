"""The process of a mirror of weights, as a Ray actor."""

from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from asyncrl.core.files.memory_owners import MemoryOwner
from asyncrl.run.host.actor_process import begin_actor
from asyncrl.run.host.ray_calls import this_node

_SIDE_BY_SIDE = 8
"""Calls that a mirror works on at once: two versions may arrive while others are asked for."""


class MirrorActor:
    """The mirror of the node that Ray started it on; its methods run side by side in threads.

    Args:
        run_id: unique among the runs on this host.
        before: the id of the killed run that this one resumes, whose files in memory are removed.
        kind: the class of the mirror, given the run's id, Ray's id of the node, and ``arguments``.
    """

    def __init__(self, log_file: Path, run_id: str, before: str | None, kind: Any, *arguments: Any) -> None:
        begin_actor(log_file)
        if before is not None:
            kind.remove_left_behind(before)
        self._memory = MemoryOwner(run_id)
        self._mirror = kind(run_id, this_node(), *arguments)

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the mirror; ``close`` ends its use of the memory file system."""
        answer = getattr(self._mirror, method)(*arguments)
        if method == "close":
            self._memory.close()
        return answer


RemoteMirror = ray.remote(MirrorActor)


def start_mirror(node: str, log_file: Path, run_id: str, before: str | None, kind: Any, *arguments: Any) -> Any:
    """Start a mirror on the node with this id of Ray, and return its handle."""
    where = NodeAffinitySchedulingStrategy(node, soft=False)
    actor = RemoteMirror.options(num_cpus=0, max_concurrency=_SIDE_BY_SIDE, scheduling_strategy=where)
    return actor.remote(log_file, run_id, before, kind, *arguments)
