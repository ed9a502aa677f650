import asyncio
import subprocess
import sys

import psutil
import pytest

from asyncrl.core.errors import ComponentFailed
from asyncrl.run.host.daemon_watch import ending_with


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
