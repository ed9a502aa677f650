"""What a run learns of a process that Ray ended, from Ray's own errors."""

import os
import subprocess
import sys

import pytest
from ray.exceptions import (
    ActorDiedError,
    ActorPlacementGroupRemoved,
    LocalRayletDiedError,
    NodeDiedError,
    OutOfDiskError,
    OutOfMemoryError,
    RayError,
    WorkerCrashedError,
)

from asyncrl.core.errors import ComponentFailed, NodeLost, ProcessDied
from asyncrl.run.host.ray_calls import translated

NO_MEMORY = """
import asyncio, time
import ray
from asyncrl.core.errors import ProcessDied
from asyncrl.run.host.ray_calls import ask, watch

@ray.remote(num_cpus=0)
class Actor:
    def work(self):
        time.sleep(120)

async def main():
    actor = Actor.remote()
    calls = [watch(actor.work.remote(), of="generator-0 to work")]
    calls.append(ask(actor.work.remote(), of="generator-0 to end", by="the driver", seconds=100, remedy="wait"))
    for error in await asyncio.gather(*calls, return_exceptions=True):
        assert type(error) is ProcessDied, repr(error)
        print(error)

memory_is_full = {"memory_usage_threshold": 0.001, "memory_monitor_refresh_ms": 100}
ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level="ERROR", _system_config=memory_is_full)
asyncio.run(main())
"""


@pytest.mark.timeout(280)
def test_a_process_that_ray_ends_for_want_of_memory_died() -> None:
    """Ray raises an error that is none of a dead actor: with it, a run ended instead of replacing its engine."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    path = os.pathsep.join(filter(None, sys.path))
    command = [sys.executable, "-c", NO_MEMORY]
    done = subprocess.run(command, env={**environment, "PYTHONPATH": path}, capture_output=True, text=True, timeout=270)
    work, end = done.stdout.splitlines()
    assert work.startswith("generator-0 to work: Ray ended its process, since its node has no memory left ("), done.stderr
    assert " used; most: " in work
    assert " GB by `" in work
    assert end.startswith("generator-0 to end: Ray ended its process")


EARLIER = """Task was killed due to the node running low on memory.
Memory on the node (IP: 192.0.2.7, ID: 55) where the task (actor ID: 5, name=A.__init__, pid=9, memory used=0.20GB) was running \
was 27.31GB / 28.00GB (0.975), which exceeds the memory usage threshold of 0.95. Ray killed this worker (ID: 7).
Top 10 memory users:
PID\tMEM(GB)\tCOMMAND
410\t21.30\tpython prepare.py
411\t1.20\tray::Actor
Refer to the documentation on how to address the out of memory issue."""


@pytest.mark.parametrize(
    ("error", "is_a", "says"),
    [
        (
            OutOfMemoryError(EARLIER),
            ProcessDied,
            "has no memory left (27.31GB of 28.00GB used; most: 21.30 GB by `python prepare.py`, 1.20 GB by `ray::Actor`);",
        ),
        (OutOfMemoryError("in other words"), ProcessDied, "has no memory left; end other programs there"),
        (ActorDiedError(), ProcessDied, "its process died"),
        (NodeDiedError("node 7 is dead"), NodeLost, "its node is gone (node 7 is dead)"),
        (ActorPlacementGroupRemoved(), NodeLost, "its node is gone"),
        (LocalRayletDiedError(), NodeLost, "its node is gone"),
        (OutOfDiskError("no space\nmore"), ComponentFailed, "OutOfDiskError: no space"),
        (WorkerCrashedError(), ComponentFailed, "WorkerCrashedError: The worker died"),
    ],
)
def test_every_error_of_ray_is_one_of_the_run(error: RayError, is_a: type[ComponentFailed], says: str) -> None:
    problem = translated(error, "generator-0 to work")
    assert type(problem) is is_a
    assert str(problem).startswith("generator-0 to work: ")
    assert says in str(problem)


def test_the_system_s_kills_for_want_of_memory_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncrl.run.host.ray_calls._KILLED_BEFORE", 3)
    monkeypatch.setattr("asyncrl.run.host.ray_calls.killed_for_memory", lambda: 3)
    assert "memory" not in str(translated(ActorDiedError(), "learner rank 0"))
    monkeypatch.setattr("asyncrl.run.host.ray_calls.killed_for_memory", lambda: 5)
    assert "; meanwhile the system ended 2 programs here for want of memory: end" in str(translated(ActorDiedError(), "rank 0"))
