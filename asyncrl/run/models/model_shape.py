"""The sizes of a model that a plan needs, read from its ``config.json`` without loading anything else."""

import json
from collections.abc import Mapping
from typing import Annotated

import msgspec

from asyncrl.core.architectures.architecture import EMBEDDING, OUTPUT, Architecture
from asyncrl.core.architectures.description import Description, Mixture
from asyncrl.core.architectures.known import KNOWN, OTHER
from asyncrl.core.errors import RecipeError
from asyncrl.core.files.weight_files import ADAPTER, adapter_refusal
from asyncrl.core.recipe.generators import GeneratorsConfig
from asyncrl.core.recipe.learner import LearnerConfig, LoraConfig
from asyncrl.core.recipe.rules.model import check_architecture, check_layout, check_routing
from asyncrl.core.recipe.rules.placement import pool_place
from asyncrl.core.recipe.schema import ModelConfig
from asyncrl.run.models.hub import model_file
from asyncrl.weights.vllm.engine_shards import EngineLayout, check_engine

TINY = "tiny"
"""The ``model.path`` of the model that is made on this machine."""
CPU_HEAD_SIZES = (32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512)
"""Sizes of attention heads that vLLM computes on a CPU."""
CPU_LATENT_SIZES = (512, 64)
"""``kv_lora_rank`` and ``qk_rope_head_dim`` of the latent attention that vLLM computes on a CPU: those of DeepSeek's models."""
ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
_LENGTHS = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
    *("max_target_positions", "max_sequence_length", "max_seq_length", "seq_len"),
)
"""Keys by which one model or another says how long a row may be."""
Size = Annotated[int, msgspec.Meta(ge=1)]
Count = Annotated[int, msgspec.Meta(ge=0)]


class ModelShape(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of a decoder-only transformer, dense or with experts, named as in Hugging Face's ``config.json``."""

    hidden_size: Size
    num_hidden_layers: Size
    num_attention_heads: Size
    intermediate_size: Size
    vocab_size: Size
    max_position_embeddings: Size
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    tie_word_embeddings: bool = False
    num_experts: Count = 0
    num_local_experts: Count = 0
    num_experts_per_tok: int | None = 8  # as in Hugging Face
    moe_intermediate_size: Count = 0
    decoder_sparse_step: Size = 1
    mlp_only_layers: tuple[int, ...] | None = None
    norm_topk_prob: bool = False
    shared_expert_intermediate_size: Count = 0
    n_routed_experts: Count = 0
    n_shared_experts: int | None = 0
    first_k_dense_replace: Count = 0
    routed_scaling_factor: float = 1.0
    attention_bias: bool = False
    use_qk_norm: bool = False
    num_nextn_predict_layers: Count = 0
    n_group: int | None = 1
    topk_group: int | None = 1
    kv_lora_rank: Count = 0
    q_lora_rank: int | None = None
    qk_nope_head_dim: Count = 0
    qk_rope_head_dim: Count = 0
    v_head_dim: Count = 0
    architectures: tuple[str, ...] | None = None

    @property
    def description(self) -> Description:
        """What is known of the model's architecture."""
        return KNOWN.get((self.architectures or ("",))[0], OTHER)

    @property
    def architecture(self) -> Architecture:
        """The model's tensors."""
        return self.description.architecture(self)

    @property
    def mixture(self) -> Mixture:
        """The sizes of its experts."""
        return self.description.mixture(self)

    @property
    def expert_parameters(self) -> int:
        """Number of weights of all experts that a router chooses from."""
        mixture = self.mixture
        return 3 * self.hidden_size * mixture.channels * mixture.experts * sum(mixture.layers)

    @property
    def key_value_heads(self) -> int:
        """Number of key-value heads, which are cached."""
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def head_size(self) -> int:
        """Size of one attention head: of its queries and keys."""
        if (latent := self.architecture.latent) is not None:
            return latent.query
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def parameters(self) -> int:
        """Number of weights, without biases and norms (less than one in a thousand)."""
        mixture = self.mixture
        layers, mixtures = self.num_hidden_layers, sum(mixture.layers)
        attention = self._attention_parameters()
        feed_forward = 3 * self.hidden_size * self.intermediate_size * (layers - mixtures)
        routers = self.hidden_size * mixture.experts * mixtures
        shared = 3 * self.hidden_size * mixture.shared * mixtures
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tie_word_embeddings else 2)
        return layers * attention + feed_forward + routers + shared + self.expert_parameters + embeddings

    def _attention_parameters(self) -> int:
        """Number of weights of a layer's attention."""
        latent, heads = self.architecture.latent, self.num_attention_heads
        if latent is None:
            return 2 * self.hidden_size * self.head_size * (heads + self.key_value_heads)
        queries = heads * latent.query
        of_queries = latent.query_rank * (self.hidden_size + queries) if latent.query_rank else self.hidden_size * queries
        of_keys = self.hidden_size * (latent.key_value_rank + latent.rotated)
        of_heads = latent.key_value_rank * (latent.plain + latent.value) + self.hidden_size * latent.value
        return of_queries + of_keys + heads * of_heads

    @property
    def active_parameters(self) -> int:
        """Number of weights that one token is multiplied by: those of its own experts, and all that are no expert's."""
        experts = self.mixture.experts
        chosen = min(self.mixture.per_token, experts)
        return self.parameters - self.expert_parameters + self.expert_parameters // max(1, experts) * chosen

    def adapter_parameters(self, lora: LoraConfig) -> int:
        """Number of weights in low-rank adapters."""
        names = {f"{target}.weight" for target in lora.targets}
        adapted = (shape for name, shape, *_ in self.architecture.tensors() if ".".join(name.split(".")[-2:]) in names)
        return lora.rank * sum(map(sum, adapted))

    def cache_bytes(self, element_bytes: int) -> int:
        """Bytes that one token takes in the key-value cache."""
        if (latent := self.architecture.latent) is not None:
            return self.num_hidden_layers * (latent.key_value_rank + latent.rotated) * element_bytes
        return 2 * self.num_hidden_layers * self.key_value_heads * self.head_size * element_bytes


TINY_SHAPE = ModelShape(
    hidden_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    intermediate_size=384,
    vocab_size=512,
    max_position_embeddings=1024,
    tie_word_embeddings=True,
    architectures=("Qwen3ForCausalLM",),
)
"""The shape of the model that ``tiny`` makes (``tiny/warmup.py``), but for the vocabulary, which follows from lessons."""


def read_shape(path: str) -> ModelShape:
    """Read the shape of the model that ``model.path`` names.

    Raises:
        RecipeError: there is no such folder, its config cannot be read, or the learner cannot train such a model.
    """
    if path == TINY:
        return TINY_SHAPE
    config = model_file(path, "config.json", "model.path")
    try:
        read = json.loads(config.read_bytes())
        shape = msgspec.convert(read, ModelShape)
    except FileNotFoundError as error:
        if config.with_name(ADAPTER).is_file():
            raise adapter_refusal(config.parent, "model.path") from error
        remedy = f"name a Hugging Face folder that holds config.json, or a model of the hub as organisation/name, or {TINY}"
        raise RecipeError("model.path", f"there is no {config}", remedy) from error
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise RecipeError("model.path", f"cannot read {config}: {error}", f"name a folder with a {', '.join(KNOWN)}") from error
    description = check_architecture(shape.architectures, None)  # what is quantised will be dequantised, or the plan refuses it
    check_routing(description, shape.mixture)
    for key in description.needed:
        if key not in read | rope_of(read):
            problem = f"{config} has no {key}, for which Hugging Face transformers has a default that is no model's own"
            raise RecipeError("model.path", problem, f"write the model's true {key} there")
    return msgspec.structs.replace(shape, max_position_embeddings=positions_of(read) or shape.max_position_embeddings)


def rope_of(config: Mapping[str, object]) -> dict[str, object]:
    """Return what a ``config.json`` says of the rotary embedding, under the name that its release of transformers has for it."""
    found: dict[str, object] = {}
    for key in ("rope_scaling", "rope_parameters"):
        if isinstance(rope := config.get(key), dict):
            found |= rope
    return found


def positions_of(config: Mapping[str, object]) -> int | None:
    """Return the longest row that a ``config.json`` allows, as vLLM reads it: the least of several keys. None if it has none."""
    named = config.get("model_max_length") or min(
        (size for key in _LENGTHS if isinstance(size := config.get(key), int)), default=0
    )
    return named if isinstance(named, int) and named > 0 else None


def check_sizes(shape: ModelShape, model: ModelConfig, learner: LearnerConfig, pools: Mapping[str, GeneratorsConfig]) -> None:
    """Check that the recipe's sizes fit the model's; a ``RecipeError`` names one that does not."""
    context, positions = model.max_context, shape.max_position_embeddings
    if context > positions:
        raise RecipeError(
            "model.max_context", f"{context} is more than the model's {positions} positions", f"set it to at most {positions}"
        )
    check_layout(learner, shape.architecture)
    for name, pool in pools.items():
        _check_engines(shape, pool_place(name), pool)


def _check_engines(shape: ModelShape, place: str, pool: GeneratorsConfig) -> None:
    check_tied(shape)
    layout = engine_layout(pool)
    check_ranks(any(shape.mixture.layers), place, pool)
    undivided = check_engine(shape.architecture, layout)
    if undivided is not None:
        what, workers = undivided
        problem = f"{workers} workers cannot divide the model's {what} equally"
        if workers == layout.tensor:
            raise RecipeError(f"{place}.tensor_parallel", problem, "choose a divisor of their number")
        remedy = f"choose it so that {place}.tensor_parallel ({layout.tensor}) times it is a divisor of their number"
        raise RecipeError(f"{place}.data_parallel", problem, remedy)


def check_tied(shape: ModelShape) -> None:
    """Check that vLLM's class has the embedding for its output layer if the model has; a ``RecipeError`` says that it has not."""
    if shape.tie_word_embeddings and not shape.description.engine_ties:
        raise RecipeError(
            "model.path",
            f"config.json ties {OUTPUT} to {EMBEDDING} (tie_word_embeddings), and vLLM's {shape.description.name} cannot: it has "
            "an output layer of its own, which no weights would reach",
            f"write tie_word_embeddings false there, and a copy of {EMBEDDING} as {OUTPUT} into the weights",
        )


def check_ranks(with_experts: bool, place: str, pool: GeneratorsConfig) -> None:
    """Check that the model has experts if several data-parallel ranks of an engine are to divide them.

    Args:
        with_experts: whether the model has any, or may have.
        place: the pool's place in the recipe.

    Raises:
        RecipeError: it has none.
    """
    if pool.data_parallel > 1 and not with_experts:
        raise RecipeError(
            f"{place}.data_parallel",
            f"{pool.data_parallel} ranks of an engine divide experts between them, and the model has none",
            f"leave it out, and set {place}.count to {pool.count * pool.data_parallel} for as many engines",
        )


def check_attention(shape: ModelShape, learner: LearnerConfig, pools: Mapping[str, GeneratorsConfig], *, on_gpus: bool) -> None:
    """Check that engines can compute the model's attention with new weights, and say which experts they chose if asked to."""
    latent, sinks = shape.architecture.latent, shape.architecture.sinks
    if sinks and on_gpus:
        problem = (
            f"on a GPU, publications do not reach vLLM's {shape.description.name}: it writes sinks and biases directly, so that "
            "loading new weights into a model that is there misses them"
        )
        raise RecipeError("model.path", problem, "run it on CPUs, or name another model")
    if sinks and learner.experts.replay:
        problem = "the experts that vLLM says it chose have not been compared for a model whose layers see windows"
        raise RecipeError("learner.experts.replay", problem, "set it to false")
    if on_gpus:
        return
    for name, pool in pools.items():
        if sinks and pool.dtype == "float16":
            problem = "in float16, vLLM on a CPU keeps a copy of the sinks, which new weights would not reach"
            raise RecipeError(f"{pool_place(name)}.dtype", problem, "set it to bfloat16 or float32")
    if latent is not None and (sizes := (latent.key_value_rank, latent.rotated)) != CPU_LATENT_SIZES:
        raise RecipeError(
            "model.path",
            "the model's kv_lora_rank and qk_rope_head_dim are {} and {}, and vLLM on a CPU computes only {} and {}".format(
                *sizes, *CPU_LATENT_SIZES
            ),
            "name a model with these, or use a GPU",
        )
    if latent is not None and learner.experts.replay:
        problem = "with latent attention, vLLM on a CPU keeps no prefixes, without which it does not say which experts it chose"
        raise RecipeError("learner.experts.replay", problem, "set it to false, or use a GPU")
    if latent is None and shape.head_size not in CPU_HEAD_SIZES:
        raise RecipeError(
            "model.path",
            f"the model's attention heads have {shape.head_size} channels, and vLLM on a CPU computes only "
            f"{', '.join(map(str, CPU_HEAD_SIZES))}",
            "name a model with such heads, or use a GPU",
        )


def check_cache(shape: ModelShape, place: str, pool: GeneratorsConfig, max_context: int) -> None:
    """Check that each rank of an engine on a CPU has cache for one whole episode, without which vLLM does not start it.

    Args:
        place: the pool's place in the recipe.

    Raises:
        RecipeError: the cache is too small.
    """
    needed = max_context * shape.cache_bytes(ELEMENT_BYTES[pool.dtype])
    if (pool.kv_cache_mb << 20) // pool.data_parallel < needed:
        shared = f", shared by {pool.data_parallel} ranks," if pool.data_parallel > 1 else ""
        raise RecipeError(
            f"{place}.kv_cache_mb",
            f"{pool.kv_cache_mb} MiB of key-value cache{shared} cannot hold an episode of model.max_context {max_context} tokens",
            f"set it to at least {-(-needed * pool.data_parallel // 2**20)}, or lower model.max_context",
        )


def engine_layout(generators: GeneratorsConfig) -> EngineLayout:
    """How the workers of each engine of a pool divide the model."""
    whole_experts = bool(generators.engine.get("enable_expert_parallel"))
    return EngineLayout(generators.tensor_parallel, generators.data_parallel, whole_experts)
