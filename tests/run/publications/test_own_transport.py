"""A transport of one's own (:mod:`folder_transport`), by a recipe's kind, through the real delivery to several nodes.

Real are the files that ranks write, the pool, its protocol, and what reads and proves the weights; no engine computes.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import torch
from fake_generator import FakeGenerator
from folder_transport import FolderTransport, FolderWeightsConfig

from asyncrl.core.ids import PolicyVersion, WorkerId
from asyncrl.core.publication import Publication, Shard
from asyncrl.core.recipe.environment import ClassEnvironmentConfig
from asyncrl.core.recipe.generators import MAIN_POOL, GeneratorsConfig
from asyncrl.core.recipe.schema import ModelConfig, Recipe
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.pool.generator_pool import GeneratorPool, GeneratorSupply
from asyncrl.run.publications.transport import Routes
from asyncrl.run.publications.transports import TRANSPORTS, transport_of
from asyncrl.weights.fingerprint import Fingerprints
from asyncrl.weights.publication_merge import merge
from asyncrl.weights.shm.shared_tensors import SharedMemory

ENGINES, NODES = 3, ("a", "b", "learner")


class ReadingGenerator(FakeGenerator):
    """Loads what lies on its node, and acknowledges with the fingerprint of what it has read."""

    weights: torch.Tensor

    async def load_publication(self, publication: Publication) -> int:
        assert {file.node for file in publication.files} == {self.node}
        await super().load_publication(publication)
        read = Fingerprints()
        for name, tensor in SharedMemory.read(publication):
            read.add(Shard(name, tuple(tensor.shape), (0,) * tensor.dim(), tensor))
            self.weights = tensor.clone()
        return read.total()


class Site:
    """Two ranks, one engine on each of three nodes, and a transport that the recipe's kind has found."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder / "weights"
        recipe = Recipe(
            name="r",
            steps=1,
            model=ModelConfig(path="m"),
            environment=ClassEnvironmentConfig(name="calculator"),
            weights=FolderWeightsConfig(folder=str(self.folder)),
        )
        kind = transport_of(recipe, on_gpus=False)
        self.said = kind.describe(Routes(recipe, ["learner"], dict.fromkeys(NODES, 1), folder, on_gpus=False))
        self.transport = kind.for_run(recipe, RunFolder(folder / "run"))
        memory = folder / "memory"
        memory.mkdir()
        self._ranks = [stack.enter_context(closing(SharedMemory("run", rank, str(memory), node="learner"))) for rank in range(2)]
        self.engines: list[ReadingGenerator] = []
        pools = {MAIN_POOL: GeneratorsConfig(count=ENGINES)}
        self.pool = GeneratorPool(
            pools, GeneratorSupply(self._make, self._lost), recipe.deadlines, lambda line: None, self.transport
        )

    def _make(self, pool: str, number: int) -> ReadingGenerator:
        self.engines.append(ReadingGenerator(number, [], NODES[number]))
        return self.engines[-1]

    async def _lost(self, worker: WorkerId, with_node: bool) -> None:
        raise AssertionError(f"{worker} was lost")

    async def publish(self, version: int) -> None:
        read = await self.pool.may_write()
        halves = [torch.full((2, 3), 10.0 * version + rank) for rank in range(2)]
        shards = [Shard("w", (4, 3), (2 * rank, 0), half) for rank, half in enumerate(halves)]
        parts = [rank.write(PolicyVersion(version), [shard], read) for rank, shard in zip(self._ranks, shards, strict=True)]
        await self.pool.deliver(merge(parts))

    def has(self, engine: int, version: int) -> bool:
        return self.engines[engine].weights[::2, 0].tolist() == [10.0 * version, 10.0 * version + 1]


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    monkeypatch.setitem(TRANSPORTS, FolderWeightsConfig, FolderTransport)  # type: ignore[arg-type]
    with ExitStack() as stack:
        made = Site(tmp_path, stack)
        await made.pool.start()
        yield made
        await made.pool.close(1.0)
        await made.transport.close(1.0)
        assert not made.folder.exists()


async def test_every_engine_loads_every_version_from_its_own_node(site: Site) -> None:
    assert site.said == f"{site.folder} to 3 engines, since the recipe asks for it"
    for version in range(6):
        await site.publish(version)
        assert all(site.has(engine, version) for engine in range(ENGINES))
    assert sorted(each.name for each in site.folder.iterdir()) == ["4", "5"], "the last two that a node has fetched"


async def test_what_a_slow_engine_reads_stays_as_it_is_while_the_others_go_on(site: Site) -> None:
    await site.publish(0)
    slow = site.engines[0]
    slow.may_load.clear()
    site.pool._delivery.overlook(slow.worker)  # its node does not answer, so that nobody waits for it
    for version in (1, 2, 3):
        await site.publish(version)
    assert slow.loading is not None
    assert slow.loading.version == 1
    slow.may_load.set()
    async with asyncio.timeout(60):
        while slow.loaded != [0, 1, 3]:  # noqa: ASYNC110 - a fake changes with the passes of the loop only
            await asyncio.sleep(0)
    assert site.has(0, 3)
