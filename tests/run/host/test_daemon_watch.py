import asyncio
import subprocess
import sys

import psutil
import pytest

from asyncrl.core.errors import ComponentFailed, NodeLost, RecipeError
from asyncrl.core.files.memory_files import LEAST_BYTES, memory_file_system
from asyncrl.run.host import full_memory
from asyncrl.run.host.daemon_watch import ending_with
from asyncrl.weights.shm.memory_file import MemoryFull


def sleeper() -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])


def test_the_death_of_a_watched_process_ends_what_is_enclosed():
    async def run(process: "subprocess.Popen[bytes]") -> None:
        async with asyncio.timeout(50):
            async with ending_with([psutil.Process(process.pid)]), asyncio.TaskGroup() as tasks:
                tasks.create_task(asyncio.sleep(60))
                process.kill()

    with sleeper() as process, pytest.raises(ComponentFailed, match=rf"process {process.pid}"):
        asyncio.run(run(process))


def test_nothing_happens_while_it_lives_and_a_cancellation_stays_one():
    async def run(process: "subprocess.Popen[bytes]") -> None:
        async with ending_with([psutil.Process(process.pid)]):
            await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05), ending_with([psutil.Process(process.pid)]):
                await asyncio.sleep(60)

    with sleeper() as process:
        asyncio.run(run(process))
        process.kill()


@pytest.mark.parametrize("free", [0, LEAST_BYTES])
@pytest.mark.parametrize("error", [NodeLost("rank 0 is gone"), ExceptionGroup("", [ValueError(), NodeLost("rank 0 is gone")])])
def test_what_fails_while_the_memory_file_system_is_full_says_so(monkeypatch, error, free):
    async def run():
        async with ending_with([]):
            raise error

    monkeypatch.setattr(full_memory, "free_memory", lambda: free)
    with pytest.raises(type(error) if free else ComponentFailed) as raised:
        asyncio.run(run())
    said = full_memory.first_reason(raised.value)
    assert (said == "rank 0 is gone") == bool(free)
    assert (f"rank 0 is gone; {memory_file_system()} of this machine has 0 MiB free" in said) == (not free)


@pytest.mark.parametrize(
    "error",
    [
        RecipeError("generators.count", "there is no room", "add nodes"),
        MemoryFull(f"{memory_file_system()}/rank0-0: no room for 9 bytes of weights"),
    ],
)
def test_what_says_enough_stays_as_it_is(monkeypatch, error):
    async def run():
        async with ending_with([]):
            raise error

    monkeypatch.setattr(full_memory, "free_memory", lambda: 0)
    with pytest.raises(type(error)) as raised:
        asyncio.run(run())
    assert raised.value is error
