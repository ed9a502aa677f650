"""Section ``generators`` of a recipe: the pools of vLLM engines."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from asyncrl.core.recipe.placement import PlacementConfig
from asyncrl.core.recipe.section import AUTOMATIC, Count, Section, UpToOne

MAIN_POOL = "generators"
"""The name of the pool that the keys of ``generators`` themselves describe."""

PIPELINE = "pipeline_parallel_size"
"""vLLM's name of how many parts the layers of an engine's model are divided into."""

MOST_RUNNING = 256
"""vLLM's own default for the sequences that an engine runs at once, on a CPU and on small GPUs."""

PoolName = Annotated[str, Meta(pattern=r"^[a-z][a-z0-9_]*\Z")]
Role = Literal["train", "evaluation", "both"]


class PoolConfig(Section, frozen=True):
    """A further pool of vLLM engines, of its own size. A key that is null has the value of the same key of ``generators``.

    Attributes:
        count: engines in the pool.
        role, max_running, dtype, kv_cache_mb, gpu_memory_share, tensor_parallel, data_parallel, engine_nodes, placement: as in
            ``generators``.
        engine: further arguments of vLLM's engine, added to those of ``generators.engine``.
    """

    count: Count
    role: Role | None = None
    max_running: Count | None = None
    dtype: Literal["bfloat16", "float16", "float32"] | None = None
    kv_cache_mb: Count | None = None
    gpu_memory_share: UpToOne | None = None
    tensor_parallel: Count | None = None
    data_parallel: Count | None = None
    engine_nodes: Count | None = None
    engine: dict[str, Any] = {}
    placement: PlacementConfig | None = None


class GeneratorsConfig(Section, frozen=True):
    """The pool of vLLM engines, and further pools.

    Attributes:
        count: engines in the pool.
        role: what they play: ``train`` episodes, those of an ``evaluation``, or ``both``. ``auto`` is ``train`` if a pool of
            ``pools`` is there for evaluations alone.
        max_running: the most episodes that one engine plays at once; fewer while its key-value cache is too small for them.
        dtype: type of the engine's weights and activations; ``auto`` is bfloat16 on GPUs. On processors with
            instructions for it, it is what is measured to be faster with the model's sizes; on others it is float32.
        kv_cache_mb: memory for the key-value cache of one engine on CPU, in MiB; on a GPU see ``gpu_memory_share``.
        gpu_memory_share: share of a GPU's memory that one engine takes; not used on CPU. At most 0.5 if ``learner.gpu`` is
            ``shared``.
        tensor_parallel: GPUs that divide each layer of one engine's model between them; on CPU, processes.
        data_parallel: groups of ``tensor_parallel`` GPUs or processes in one engine. Each samples episodes of its own, and all of
            them divide the experts of a layer. Only for models with experts.
        engine_nodes: nodes that the GPUs or processes of one engine are on, as many on each; they exchange each layer's tokens.
        updates: what episodes that are being played do with a new version: they go on with it (``in_flight``), or keep the
            version they began with for as long as ``buffer.max_staleness`` admits it (``at_episode``). The latter needs
            ``learner.lora.publish`` adapter.
        engine: further arguments of vLLM's engine by their names there, such as ``{max_num_batched_tokens: 16384}``.
        placement: which nodes of a cluster they go to.
        pools: further pools by name, such as ``{evaluation: {count: 1, role: evaluation}}``, whose engines are not counted in
            ``count``.
    """

    count: Annotated[Count, AUTOMATIC] = 2
    role: Annotated[Role, AUTOMATIC] = "both"
    max_running: Annotated[Count, AUTOMATIC] = 64
    dtype: Annotated[Literal["bfloat16", "float16", "float32"], AUTOMATIC] = "bfloat16"
    kv_cache_mb: Annotated[Count, AUTOMATIC] = 256
    gpu_memory_share: Annotated[UpToOne, AUTOMATIC] = 0.85
    tensor_parallel: Count = 1
    data_parallel: Count = 1
    engine_nodes: Count = 1
    updates: Literal["in_flight", "at_episode"] = "in_flight"
    engine: dict[str, Any] = {}
    placement: PlacementConfig = PlacementConfig()
    pools: dict[PoolName, PoolConfig] = {}

    @property
    def by_pool(self) -> dict[str, "GeneratorsConfig"]:
        """Each pool by name, with the value of every key; the first is :data:`MAIN_POOL`."""
        main = msgspec.structs.replace(self, pools={})
        return {MAIN_POOL: main, **{name: _pool_section(main, pool) for name, pool in self.pools.items()}}

    @property
    def engine_workers(self) -> int:
        """GPUs of one engine; on CPU, processes that compute."""
        stages = self.engine.get(PIPELINE)
        return self.tensor_parallel * self.data_parallel * (stages if isinstance(stages, int) else 1)

    @property
    def engines(self) -> int:
        """Engines of all pools."""
        return self.count + sum(pool.count for pool in self.pools.values())

    @property
    def training(self) -> dict[str, "GeneratorsConfig"]:
        """The pools that play training episodes."""
        return {name: pool for name, pool in self.by_pool.items() if pool.role != "evaluation"}

    def resized(self, sizes: Mapping[str, int]) -> "GeneratorsConfig":
        """Return the same pools with as many engines as ``sizes`` says by the pool's name."""
        pools = {name: msgspec.structs.replace(pool, count=sizes[name]) for name, pool in self.pools.items()}
        return msgspec.structs.replace(self, count=sizes[MAIN_POOL], pools=pools)


def _pool_section(main: GeneratorsConfig, pool: PoolConfig) -> GeneratorsConfig:
    """Return the keys of a pool as if it were the only one."""
    own = {key: value for key, value in msgspec.structs.asdict(pool).items() if value is not None}
    return msgspec.structs.replace(main, **{**own, "engine": {**main.engine, **pool.engine}})
