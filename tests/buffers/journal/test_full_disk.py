"""A whole run on a small disk that fills up underway: it pauses, says so, and goes on when there is room."""

import asyncio

import msgspec
from crash_run import Checkpoint, Paths, Run
from small_disk import fill, filled, mounted
from test_crash import RECIPES, check_ledger, expected_tasks, trained_tasks

from asyncrl.buffers import service as service_module
from asyncrl.buffers import write_ahead
from asyncrl.core.measures.buffer_statistics import BufferStatistics

RECIPE = msgspec.structs.replace(RECIPES["masked"], steps=40)


async def refill(ballast):
    """Fill the disk again: the space that the run itself frees is taken, too."""
    while True:
        fill(ballast)
        await asyncio.sleep(0.001)


async def test_a_run_pauses_on_a_full_disk_and_goes_on_when_there_is_room(tmp_path, monkeypatch):
    monkeypatch.setattr(write_ahead, "DISK_RETRY_S", 0.02)
    monkeypatch.setattr(service_module, "LEASE_WAIT_S", 0.01)
    monkeypatch.setattr(write_ahead, "SNAPSHOT_BYTES", 12_000)
    paths = Paths(tmp_path)
    with mounted(paths.buffer, "tmpfs", "size=1m"):
        run = Run(RECIPE, paths, RECIPE.steps)

        async def stopped():
            before = run.version
            await asyncio.sleep(0.3)
            return run.version == before and bool((await run.service.statistics()).paused)

        async with asyncio.timeout(200), asyncio.TaskGroup() as group:
            running = group.create_task(run.live())
            for wanted in (5, 15, 25):
                while run.version < wanted:  # noqa: ASYNC110 - a run tells nobody how far it is
                    await asyncio.sleep(0.001)
                with filled(paths.buffer) as ballast:
                    filling = group.create_task(refill(ballast))
                    while not await stopped():
                        assert not running.done()
                    message = (await run.service.statistics()).paused
                    assert "is full" in message
                    assert "make room" in message
                    filling.cancel()
        learner = msgspec.json.decode(paths.checkpoint.read_bytes(), type=Checkpoint)
        assert [version for version, _ in learner.lineage] == list(range(RECIPE.steps))
        assert trained_tasks(learner) == expected_tasks(RECIPE)
        statistics = msgspec.json.decode(paths.statistics.read_bytes(), type=BufferStatistics)
        check_ledger(statistics)
        assert statistics.paused == ""
