"""Key ``algorithm.teacher`` of a recipe: another model, whose probabilities of what the policy samples train it.

The formula and its sources: docs/reference/algorithms.md.
"""

from typing import Any, Literal

import msgspec

from asyncrl.core.recipe.environment import VariableName
from asyncrl.core.recipe.generators import GeneratorsConfig
from asyncrl.core.recipe.placement import PlacementConfig
from asyncrl.core.recipe.section import Count, Positive, Seconds, Section, Text, UpToOne

PIECE_TOKENS = 2048
"""Tokens whose probabilities over the whole vocabulary an engine of a teacher computes at once."""


class TeacherConfig(Section, frozen=True):
    """On-policy distillation: each sampled token has, beside the advantage of its reward, ``coefficient`` times how much more
    probable it is to a teacher than to the policy. The teacher may be of any size and architecture that vLLM has; its
    tokenizer must be the policy's. Either its ``path`` is given, and engines of its own score finished episodes, or the ``url``
    of a vLLM server.

    Attributes:
        path: a Hugging Face folder, or an id on the hub. null if there is a ``url``.
        url: the address of a vLLM server that serves the teacher, such as ``http://host:8000``. null if there is a ``path``.
        coefficient: what the difference of log-probabilities is multiplied by.
        engines: how many engines score episodes; a ``url`` has its own.
        dtype: type of an engine's weights and activations; null means that of ``generators``.
        kv_cache_mb: memory for the key-value cache of an engine on CPU, in MiB; null means that of ``generators``.
        gpu_memory_share: share of a GPU's memory that an engine takes; null means that of ``generators``.
        tensor_parallel: GPUs that divide each layer of an engine's model between them; on CPU, processes.
        engine: further arguments of vLLM's engine by their names there.
        placement: which nodes of a cluster the engines go to.
        token_variable: name of the environment variable whose value is sent to ``url`` as bearer token, as a server that is
            started with ``--api-key`` wants it; null if none is. It is read where the run is launched, and stands in no file of
            the run.
        timeout_s: a request to ``url`` that takes longer is repeated, until ``deadlines.reward`` has passed.
    """

    path: Text | None = None
    url: Text | None = None
    coefficient: Positive = 1.0
    engines: Count = 1
    dtype: Literal["bfloat16", "float16", "float32"] | None = None
    kv_cache_mb: Count | None = None
    gpu_memory_share: UpToOne | None = None
    tensor_parallel: Count = 1
    engine: dict[str, Any] = {}
    placement: PlacementConfig = PlacementConfig()
    token_variable: VariableName | None = None
    timeout_s: Seconds = 60.0

    def pool(self, generators: GeneratorsConfig) -> GeneratorsConfig:
        """Return the pool of the teacher's engines, given the recipe's ``generators``.

        A row is computed in pieces, because the probabilities of all tokens of a piece over the whole vocabulary are in memory.
        """
        own = {name: getattr(self, name) for name in ("dtype", "kv_cache_mb", "gpu_memory_share")}
        pieces = {"max_num_batched_tokens": max(PIECE_TOKENS, generators.max_running), "enable_chunked_prefill": True}
        return msgspec.structs.replace(
            generators,
            **{name: value for name, value in own.items() if value is not None},
            count=self.engines,
            tensor_parallel=self.tensor_parallel,
            data_parallel=1,
            engine_nodes=1,
            engine={**pieces, **self.engine},
            placement=self.placement,
            pools={},
        )

    @property
    def name(self) -> str:
        """The teacher, for people."""
        return self.path or self.url or ""
