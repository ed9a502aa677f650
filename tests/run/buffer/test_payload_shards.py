"""Payload between two nodes, which are two Ray nodes on this machine."""

import asyncio
import json
from pathlib import Path

import msgspec
import pytest
import ray
from others_folders import link, of_another_user, writable
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from ray_actors import NodesHere, end_actor

from asyncrl.bench.buffer.buffer_actors import episode_of
from asyncrl.buffers.payload_store import PayloadLost, PayloadReader
from asyncrl.core.episode import encode
from asyncrl.core.episode_records import EpisodeRecord
from asyncrl.core.errors import ComponentFailed, ProcessDied
from asyncrl.core.files.memory_owners import remove_owner_file
from asyncrl.core.recipe.buffer import AppendOnlyJournalConfig, BufferConfig, NoJournalConfig
from asyncrl.core.recipe.environment import ClassEnvironmentConfig
from asyncrl.core.recipe.schema import BatchConfig, ModelConfig, Recipe
from asyncrl.run.buffer.buffer_actor import RemoteBuffer
from asyncrl.run.buffer.client import BufferClient
from asyncrl.run.buffer.payload_shards import (
    PayloadShard,
    PayloadSink,
    PayloadSource,
    RemotePayloadShard,
    RemoteStore,
    ShardPlace,
)
from asyncrl.run.host.ray_calls import ask, ask_blocking
from asyncrl.run.nodes.remote_files import start_node_files

RECIPE = Recipe(
    name="test",
    steps=1,
    model=ModelConfig(path="tiny"),
    environment=ClassEnvironmentConfig(name="calculator"),
    buffer=BufferConfig(journal=AppendOnlyJournalConfig(segment_mb=1)),
)


@pytest.fixture(scope="module")
def nodes():
    """Ids of two nodes; this process is on the first."""
    cluster = NodesHere(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "object_store_memory": 80 << 20, "include_dashboard": False},
    )
    cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
    ray.init(address=cluster.address, log_to_driver=False)
    here = ray.get_runtime_context().get_node_id()
    yield [here, *(node["NodeID"] for node in ray.nodes() if node["NodeID"] != here)]
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture(scope="module")
def shards(nodes, tmp_path_factory):
    """Two on the first node, one on the second."""
    folder, places = tmp_path_factory.mktemp("shards"), []
    for shard, node in enumerate((nodes[0], nodes[0], nodes[1])):
        where = NodeAffinitySchedulingStrategy(node, soft=False)
        actor = RemotePayloadShard.options(num_cpus=0, max_concurrency=10, scheduling_strategy=where).remote(
            RECIPE.buffer, shard, folder / f"shard-{shard}", folder.name, folder / "log"
        )
        places.append(ShardPlace(shard, node, folder / f"shard-{shard}", actor))
    yield places
    for place in places:
        ray.kill(place.actor)
    remove_owner_file(folder.name)


def written(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.rows"))


def append(sink, group_id, *payloads):
    return asyncio.run(sink.append(group_id, payloads))


def test_a_worker_writes_on_its_own_node_groups_spread_over_its_shards(nodes, shards):
    before = [written(place.folder) for place in shards]
    sink = PayloadSink(RECIPE.buffer, shards, nodes[0], "worker")
    refs = [append(sink, group_id, b"a" * 10, b"b" * 10) for group_id in range(6)]
    assert [{ref.shard for ref in group} for group in refs] == [{0}, {1}] * 3
    assert [written(place.folder) - there for place, there in zip(shards, before, strict=True)] == [60, 60, 0]
    sink.close()


def test_freed_and_swept_by_the_shard_on_its_node(nodes, shards):
    """Before any other test writes on the second node."""
    sink = PayloadSink(RECIPE.buffer, shards, nodes[1], "worker")
    refs = append(sink, 0, b"a" * 8192, b"b" * 8192)
    sink.close()
    store = RemoteStore(2, shards[2].actor, whole_s=60.0)
    assert store.verify(refs) == []
    store.free(refs[:1])
    assert store.verify(refs) == refs[:1]
    with pytest.raises(PayloadLost, match="shard-2"):
        PayloadSource(shards, nodes[0], "rank").fetch_payloads(refs[:1])
    assert not store.is_empty()
    assert store.set_aside([]) > 0
    assert written(shards[2].folder) > 0
    store.sweep()
    assert store.is_empty()
    assert written(shards[2].folder) == 0


def test_a_worker_on_a_node_without_a_shard_has_its_rows_kept_elsewhere(shards):
    sink = PayloadSink(RECIPE.buffer, shards, "a third node", "worker")
    refs = [ref for group_id in range(3) for ref in append(sink, group_id, b"%d" % group_id)]
    assert [ref.shard for ref in refs] == [0, 1, 2]
    assert [PayloadReader(shards[ref.shard].folder).read([ref]) for ref in refs] == [[b"0"], [b"1"], [b"2"]]


def test_a_rank_gets_rows_of_every_node_in_the_order_asked_for(nodes, shards):
    expected = []
    for node in nodes:
        sink = PayloadSink(RECIPE.buffer, shards, node, f"worker on {node}")
        for group_id in range(4):
            payloads = [b"%s %d %d" % (node.encode(), group_id, index) for index in range(3)]
            expected += list(zip(append(sink, group_id, *payloads), payloads, strict=True))
    expected = expected[::2] + expected[1::2]
    assert {ref.shard for ref, _ in expected} == {0, 1, 2}

    def fetch():
        return PayloadSource(shards, ray.get_runtime_context().get_node_id(), "rank").fetch_payloads([ref for ref, _ in expected])

    for node in nodes:
        where = NodeAffinitySchedulingStrategy(node, soft=False)
        assert ray.get(ray.remote(fetch).options(num_cpus=0, scheduling_strategy=where).remote()) == [p for _, p in expected]


def test_who_is_on_a_node_that_is_gone_counts_as_dead(nodes):
    gone = "e" * len(nodes[0])
    with pytest.raises(ProcessDied, match="the files: its node is gone"):
        asyncio.run(ask(start_node_files(gone).sees.remote(Path("/")), of="the files", by="a test", seconds=60, remedy="none"))
    with pytest.raises(ComponentFailed, match=r"the files: its node is gone \(.*\); none"):
        ask_blocking(start_node_files(gone).sees.remote(Path("/")), of="the files", by="a test", seconds=60, remedy="none")


def test_a_call_of_a_shard_whose_answer_is_lost_is_made_again(nodes, shards):
    refs = append(PayloadSink(RECIPE.buffer, shards, nodes[1], "worker"), 0, b"far")
    lost = {"num_failures": 1, "req_failure_prob": 0, "resp_failure_prob": 100, "in_flight_failure_prob": 0}

    def fetch():
        return PayloadSource(shards, nodes[0], "rank").fetch_payloads(refs)

    rank = ray.remote(fetch).options(
        num_cpus=0,
        scheduling_strategy=NodeAffinitySchedulingStrategy(nodes[0], soft=False),
        runtime_env={"env_vars": {"RAY_testing_rpc_failure": json.dumps({"CoreWorkerService.grpc_client.PushTask": lost})}},
    )
    assert ray.get(rank.remote(), timeout=200) == [b"far"]


def test_what_lies_on_ones_own_node_needs_no_actor_and_what_does_not_says_whose_died(nodes, shards):
    """The last test of these shards."""
    near = append(PayloadSink(RECIPE.buffer, shards, nodes[0], "near"), 0, b"near")
    far = append(PayloadSink(RECIPE.buffer, shards, nodes[1], "far"), 0, b"far")
    for place in shards:
        end_actor(place.actor)
    source = PayloadSource(shards, nodes[0], "rank 0")
    assert source.fetch_payloads(near) == [b"near"]
    with pytest.raises(ComponentFailed, match="payload shard 2"):
        source.fetch_payloads(far)


@pytest.mark.parametrize("journal", [NoJournalConfig(), AppendOnlyJournalConfig()], ids=["memory", "journal"])
def test_a_whole_buffer_over_two_nodes(nodes, tmp_path, journal):
    buffer_settings = BufferConfig(journal=journal, shards=3)
    recipe = msgspec.structs.replace(RECIPE, buffer=buffer_settings, batch=BatchConfig(groups_per_step=2, group_size=2))
    run_id = f"{tmp_path.name}-two-nodes"
    where = NodeAffinitySchedulingStrategy(nodes[0], soft=False)
    buffer = RemoteBuffer.options(num_cpus=0, max_concurrency=100, scheduling_strategy=where).remote(
        recipe, tmp_path, run_id, tmp_path / "buffer.log"
    )
    ray.get(buffer.ready.remote())
    assert ray.get(buffer.take_over.remote()) == ""
    places = ray.get(buffer.shards.remote())
    assert [place.node for place in places] == [nodes[0], nodes[1], nodes[0]]
    assert not any(place.folder.exists() for place in places), "where payload is to be put back, no folder is made in its place"

    async def through():
        client = await BufferClient.connect(buffer, "a client", print)
        written = {}
        for ticket, node in zip(await client.lease("worker", 0, 2), nodes, strict=True):
            episodes = [episode_of(ticket, index, 64, 0) for index in ticket.samples]
            refs = await PayloadSink(recipe.buffer, places, node, "worker").append(ticket.group_id, [*map(encode, episodes)])
            await client.commit([EpisodeRecord.of(each, ref) for each, ref in zip(episodes, refs, strict=True)])
            written |= {(each.group_id, each.sample_index): encode(each) for each in episodes}
        batch = await client.take(0)
        await client.trained(0)
        client.close()
        return written, batch

    written, batch = asyncio.run(through())
    assert all(place.folder.is_dir() for place in places[:2])
    assert {each.payload.shard for each in batch.episodes} == {0, 1}
    fetched = PayloadSource(places, nodes[0], "rank").fetch_payloads([each.payload for each in batch.episodes])
    assert dict(zip([each.name for each in batch.episodes], fetched, strict=True)) == written
    ray.get(buffer.close.remote())
    assert places[0].folder.parent.is_dir() == (journal != NoJournalConfig())
    ray.kill(buffer)
    remove_owner_file(run_id)


@pytest.mark.parametrize("made", [link, of_another_user, writable])
async def test_payload_in_memory_is_not_laid_into_a_folder_that_others_made(made, tmp_path):
    made(tmp_path / "payload")
    shard = PayloadShard(BufferConfig(journal=NoJournalConfig()), 0, tmp_path / "payload" / "shard-0")
    with pytest.raises(ComponentFailed, match=r"cannot be kept in memory: .*payload.*; remove it, or launch again"):
        await shard.begin()


async def test_payload_in_memory_lies_in_a_folder_of_this_user_alone(tmp_path):
    shard = PayloadShard(BufferConfig(journal=NoJournalConfig()), 0, tmp_path / "payload" / "shard-0")
    await shard.begin()
    await shard.append([b"payload"])
    assert (tmp_path / "payload").stat().st_mode & 0o777 == 0o700
    await shard.remove()
    assert not (tmp_path / "payload").exists()
