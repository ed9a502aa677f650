import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from ray.exceptions import RayActorError
from samples import make_buffer
from short_episodes import episode

from asyncrl.buffers.journal.disk import DiskFull
from asyncrl.buffers.payload_store import PayloadReader
from asyncrl.core.batch import Batch
from asyncrl.core.episode import Episode, decode
from asyncrl.core.episode_records import EpisodeRecord, PayloadRef
from asyncrl.core.errors import ComponentFailed, DeadlineExceeded, EnvironmentBroken, FailureKind, ProcessDied
from asyncrl.core.ids import GroupId, PolicyVersion, WorkerId
from asyncrl.core.measures.buffer_statistics import BufferStatistics
from asyncrl.core.recipe.buffer import AppendOnlyJournalConfig, BufferConfig
from asyncrl.core.trajectory import Sampling
from asyncrl.rpc.client import RpcClient
from asyncrl.rpc.server import RpcServer
from asyncrl.rpc.wire import Endpoint
from asyncrl.run.buffer import client, ticket_client
from asyncrl.run.buffer.client import METHODS, BufferClient
from asyncrl.run.buffer.payload_shards import PayloadSink, ShardPlace
from asyncrl.run.buffer.ticket_client import RemoteTicketClient

WORKER = WorkerId("generator-0")
NOTHING = make_buffer().statistics()


def sample(index: int) -> EpisodeRecord:
    return EpisodeRecord.of(episode(index), PayloadRef(0, "s", index, 1, 0))


class FakeBuffer:
    """Answers at once, except while its ``gate`` is closed; ``paused`` as its statistics say."""

    def __init__(self) -> None:
        self.commits: list[list[int]] = []
        self.pauses: list[str] = []
        self.renewed = 0
        self.paused = self.in_vain = ""
        self.silent = False
        self.asked_for_statistics = 0
        self.gate = asyncio.Event()
        self.gate.set()
        self.changed = asyncio.Condition()

    async def commit(self, samples: Sequence[EpisodeRecord]) -> None:
        self.commits.append([s.sample_index for s in samples])
        self.samples = list(samples)
        await self._notify()
        await self.gate.wait()

    async def renew(self, worker: WorkerId, running: Sequence[GroupId]) -> Sequence[GroupId]:
        self.renewed += 1
        return running[:1]

    async def fail(self, *arguments: Any) -> None:
        self.failure = arguments

    async def report_pause(self, worker: WorkerId, message: str) -> None:
        self.pauses.append(message)
        await self._notify()

    async def statistics(self) -> BufferStatistics:
        self.asked_for_statistics += 1
        await self._notify()
        if self.silent:
            await asyncio.Event().wait()
        return msgspec.structs.replace(NOTHING, paused=self.paused, in_vain=self.in_vain)

    async def take(self, version: PolicyVersion) -> Batch:
        await self.gate.wait()
        return Batch(version, version, ())

    async def _notify(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(60), self.changed:
            await self.changed.wait_for(condition)


class FakeActor:
    """What Ray says of the buffer's process."""

    def __init__(self, *, dead: bool, endpoint: Endpoint | None = None) -> None:
        self.endpoint = self
        self._dead, self._endpoint = dead, endpoint

    async def remote(self) -> Endpoint | None:
        if self._dead:
            raise RayActorError
        return self._endpoint


class FillingSink:
    """A real sink on a disk that is ``full`` for a while."""

    def __init__(self, sink: PayloadSink, folder: Path) -> None:
        self._sink, self._folder = sink, folder
        self.full = False
        self.tries = 0

    async def append(self, group_id: GroupId, payloads: Sequence[bytes]) -> list[PayloadRef]:
        self.tries += 1
        if self.full:
            raise DiskFull(self._folder, len(payloads[0]), 0)
        return await self._sink.append(group_id, payloads)


class Shop:
    """A ticket client on its way to a buffer, over a real connection."""

    def __init__(self, folder: Path, fsync: str, reward_names: Sequence[str], *, buffer_dead: bool) -> None:
        (folder / "shard-0").mkdir()
        self.folder = folder / "shard-0"
        self.recipe = BufferConfig(journal=AppendOnlyJournalConfig(fsync=fsync))  # type: ignore[arg-type]
        self.buffer, self.actor, self.notes = FakeBuffer(), FakeActor(dead=buffer_dead), []
        sink = PayloadSink(self.recipe, [ShardPlace(0, "here", self.folder, None)], "here", WORKER)
        self.sink = FillingSink(sink, self.folder)
        self.server = RpcServer(self.buffer, METHODS, "the buffer")
        self.reward_names = reward_names

    async def open(self) -> None:
        self.rpc = await RpcClient.connect(await self.server.start("127.0.0.1"), METHODS)
        self.client = BufferClient(self.actor, self.rpc, WORKER, self.notes.append)
        self.ticket_client = RemoteTicketClient(self.client, WORKER, self.sink, self.reward_names)

    def close(self) -> None:
        self.rpc.close()
        self.server.close()


OpenShop = Callable[..., Awaitable[Shop]]


@pytest.fixture
async def open_shop(tmp_path: Path) -> AsyncIterator[OpenShop]:
    with ExitStack() as shops:

        async def open_one(fsync: str = "never", reward_names: Sequence[str] = (), *, buffer_dead: bool = False) -> Shop:
            shop = Shop(tmp_path, fsync, reward_names, buffer_dead=buffer_dead)
            await shop.open()
            shops.callback(shop.close)
            return shop

        yield open_one


async def all_within(seconds: float, *waiting: Awaitable[Any]) -> list[Any]:
    async with asyncio.timeout(seconds):
        return await asyncio.gather(*waiting)


@pytest.mark.parametrize("fsync", ["never", "always"])
async def test_what_the_buffer_hears_of_is_kept(open_shop: OpenShop, fsync: str) -> None:
    shop = await open_shop(fsync)
    sent = [episode(index) for index in range(4)]
    heard = []
    for each in sent:
        await shop.ticket_client.commit(each)
        heard += shop.buffer.samples
    for each, told in zip(sent, heard, strict=True):
        (data,) = PayloadReader(shop.folder).read([told.payload])
        assert plain(decode(data)) == plain(each)
        assert told == EpisodeRecord.of(each, told.payload)
        assert told.sampled == ((5, each.sample_index + 1),)


async def test_the_buffer_hears_what_no_loss_can_train(open_shop: OpenShop) -> None:
    shop = await open_shop()
    sampled = episode(0)
    for each in (sampled, msgspec.structs.replace(sampled, sampling=Sampling(0.0, 1.0, 0))):
        await shop.ticket_client.commit(each)
        (told,) = shop.buffer.samples
        assert told.greedy == (each is not sampled)
        assert told.trainable_tokens(PolicyVersion(5)) == (1 if each is sampled else 0)
        assert told.sampled == ((5, 1),)


async def test_the_buffer_hears_of_each_reward_that_the_recipe_names(open_shop: OpenShop) -> None:
    shop = await open_shop(reward_names=("polite", "reward"))
    await shop.ticket_client.commit(msgspec.structs.replace(episode(0), metrics={"polite": 0.25, "calls": 3.0}))
    (told,) = shop.buffer.samples
    assert told.rewards == (0.25, 0.5)


def plain(each: Episode) -> object:
    """The episode with lists in place of arrays, which cannot be compared."""
    return msgspec.to_builtins(each, enc_hook=np.ndarray.tolist)


async def test_samples_that_come_while_a_call_is_under_way_go_with_the_next(open_shop: OpenShop) -> None:
    shop = await open_shop()
    shop.buffer.gate.clear()
    first = asyncio.create_task(shop.ticket_client.commit(episode(0)))
    await shop.buffer.until(lambda: shop.buffer.commits == [[0]])
    others = [asyncio.create_task(shop.ticket_client.commit(episode(index))) for index in range(1, 5)]
    for _ in range(20):
        await asyncio.sleep(0)
    assert shop.buffer.commits == [[0]]
    assert not any(task.done() for task in (first, *others))
    shop.buffer.gate.set()
    await all_within(60, first, *others)
    assert shop.buffer.commits == [[0], [1, 2, 3, 4]]


async def test_a_full_disk_loses_nothing_is_reported_once_and_holds_up_no_renewal(
    open_shop: OpenShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ticket_client, "FIRST_RETRY_S", 0.001)
    monkeypatch.setattr(ticket_client, "LAST_RETRY_S", 0.004)
    shop = await open_shop()
    shop.sink.full = True
    waiting = [asyncio.create_task(shop.ticket_client.commit(episode(index))) for index in range(6)]
    await shop.buffer.until(lambda: len(shop.buffer.pauses) == 1)
    assert "is full" in shop.buffer.pauses[0]
    assert await shop.ticket_client.renew(WORKER, [GroupId(8), GroupId(9)]) == [8]
    async with asyncio.timeout(60):
        while shop.sink.tries < 5:  # noqa: ASYNC110 - the sink is tried at intervals
            await asyncio.sleep(0.001)
    assert shop.buffer.commits == []
    shop.sink.full = False
    await all_within(60, *waiting)
    assert shop.buffer.pauses[1:] == [""]
    assert sorted(index for call in shop.buffer.commits for index in call) == list(range(6))


async def test_a_group_given_up_on_a_full_disk_pauses_nobody_any_more(open_shop: OpenShop) -> None:
    shop = await open_shop()
    shop.sink.full = True
    waiting = asyncio.create_task(shop.ticket_client.commit(episode(0)))
    await shop.buffer.until(lambda: len(shop.buffer.pauses) == 1)
    waiting.cancel()
    await shop.buffer.until(lambda: len(shop.buffer.pauses) == 2)
    assert shop.buffer.pauses[1] == ""


async def test_a_malformed_episode_is_named(open_shop: OpenShop) -> None:
    shop = await open_shop()
    whole = episode(1)
    stream = msgspec.structs.replace(whole.trajectories[0], loss_mask=np.zeros(4, bool))
    broken = msgspec.structs.replace(whole, trajectories=(stream,))
    message = r"generator-0 made a malformed episode \(task t, group 3, sample 1\): trajectory 0: the loss mask is not exactly"
    with pytest.raises(ComponentFailed, match=message):
        await shop.ticket_client.commit(broken)
    assert shop.buffer.commits == []


async def test_a_failure_is_given_back_by_name(open_shop: OpenShop) -> None:
    shop = await open_shop()
    await shop.ticket_client.fail(GroupId(3), 1, FailureKind.DATA, "it broke")
    assert shop.buffer.failure == (3, 1, FailureKind.DATA, "it broke", "")


async def test_a_paused_buffer_is_waited_for_and_a_silent_one_is_not(
    open_shop: OpenShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PAUSE_CHECK_S", 60.0)  # so long may the buffer take to say that it is paused
    monkeypatch.setattr(client, "ANSWER_DEADLINE_S", 0.02)
    shop = await open_shop()
    shop.buffer.gate.clear()
    shop.buffer.paused = "the buffer: /runs is full"
    waiting = asyncio.create_task(shop.client.commit([]))
    async with asyncio.timeout(60):
        while len(shop.notes) < 1:  # noqa: ASYNC110 - the pause is asked for at intervals
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert not waiting.done()
    shop.buffer.gate.set()
    await all_within(60, waiting)
    assert shop.notes == ["Paused: the buffer: /runs is full", "There is room again: the run goes on"]
    shop.buffer.gate.clear()
    shop.buffer.paused = ""
    with pytest.raises(DeadlineExceeded, match=r"generator-0 waited 0.02 s for the buffer \(commit\)"):
        await shop.client.commit([])


async def test_who_waits_for_a_batch_in_vain_is_told_so_once(open_shop: OpenShop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "PAUSE_CHECK_S", 0.01)
    shop = await open_shop()
    shop.buffer.gate.clear()
    shop.buffer.in_vain = "buffer.filters left out the last 8 groups"
    waiting = asyncio.create_task(shop.client.take(PolicyVersion(3)))
    await shop.buffer.until(lambda: shop.buffer.asked_for_statistics > 3)
    shop.buffer.gate.set()
    await all_within(60, waiting)
    assert shop.notes == ["Warning: buffer.filters left out the last 8 groups"]


async def test_an_answer_is_taken_while_the_pause_is_asked_for_and_a_silent_buffer_is_not_waited_for_longer(
    open_shop: OpenShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PAUSE_CHECK_S", 60.0)
    monkeypatch.setattr(client, "ANSWER_DEADLINE_S", 0.06)
    shop = await open_shop()
    shop.buffer.gate.clear()
    shop.buffer.silent = True
    waiting = asyncio.create_task(shop.client.commit([]))
    await shop.buffer.until(lambda: shop.buffer.asked_for_statistics > 0)
    shop.buffer.gate.set()
    await all_within(60, waiting)
    shop.buffer.gate.clear()
    monkeypatch.setattr(client, "PAUSE_CHECK_S", 0.05)
    with pytest.raises(DeadlineExceeded, match=r"generator-0 waited 0.06 s for the buffer \(commit\)"):
        await all_within(60, shop.client.commit([]))


@pytest.mark.parametrize(
    ("dead", "raised", "told"),
    [
        (True, ComponentFailed, r"the buffer \(commit\): its process died"),
        (False, ProcessDied, r"generator-0 lost its connection to the buffer, which is alive \(the buffer \(commit\)"),
    ],
)
async def test_the_buffers_death_is_not_taken_for_the_generators(
    open_shop: OpenShop, dead: bool, raised: type[Exception], told: str
) -> None:
    """A generator that died, or lost its connection, is replaced; nothing can take the buffer's place."""
    shop = await open_shop(buffer_dead=dead)
    shop.buffer.gate.clear()
    waiting = asyncio.create_task(shop.ticket_client.commit(episode(0)))
    await shop.buffer.until(lambda: shop.buffer.commits == [[0]])
    shop.rpc.close()
    for call in (waiting, shop.ticket_client.commit(episode(1))):
        with pytest.raises(ComponentFailed, match=told) as caught:
            await call
        assert type(caught.value) is raised


async def test_the_drivers_lost_connection_is_not_the_death_of_a_generator(open_shop: OpenShop) -> None:
    shop = await open_shop()
    driver = BufferClient(shop.actor, shop.rpc, "the driver", print, loss=ComponentFailed)
    shop.rpc.close()
    with pytest.raises(ComponentFailed, match="the driver lost its connection to the buffer, which is alive") as caught:
        await driver.statistics()
    assert type(caught.value) is ComponentFailed


async def test_a_dead_buffer_cannot_be_connected_to_and_that_is_not_the_generators_death() -> None:
    with pytest.raises(ComponentFailed, match=r"the buffer \(endpoint\): its process died") as caught:
        await BufferClient.connect(FakeActor(dead=True), WORKER, print)
    assert type(caught.value) is ComponentFailed


async def test_where_the_buffer_cannot_be_reached_the_remedy_is_told() -> None:
    actor = FakeActor(dead=False, endpoint=Endpoint("127.0.0.1", 1, b""))
    with pytest.raises(ComponentFailed, match=r"generator-0 cannot connect to the buffer: 127.0.0.1:1 .*; the nodes of"):
        await BufferClient.connect(actor, WORKER, print)


async def test_who_ends_is_told_so_and_not_of_the_network(open_shop: OpenShop) -> None:
    shop = await open_shop()
    shop.client.close()
    with pytest.raises(ComponentFailed, match=r"the buffer \(commit\): generator-0 is ending and has closed its connection"):
        await shop.client.commit([])


async def test_what_cannot_be_said_in_utf_8_is_written_out(open_shop: OpenShop) -> None:
    shop = await open_shop()
    await shop.ticket_client.fail(GroupId(3), 1, FailureKind.DATA, str(EnvironmentBroken("half a pair: \ud800")))
    assert shop.buffer.failure == (3, 1, FailureKind.DATA, r"half a pair: \ud800", "")
