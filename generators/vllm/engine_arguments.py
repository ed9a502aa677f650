"""The arguments of a vLLM engine: those that follow from the recipe, those that asyncrl needs as they are, and the user's own.

What always holds: a name in ``engine`` of a pool is one of vLLM's own, and nothing that asyncrl needs can be changed there.
"""

import ast
import json
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from asyncrl.core.adapters import AdapterSettings
from asyncrl.core.errors import RecipeError
from asyncrl.core.publication import VLLM_BACKEND
from asyncrl.core.recipe.generators import MAIN_POOL, PIPELINE, GeneratorsConfig
from asyncrl.generators.vllm.cpu.model_inspection import inspect_models_here
from asyncrl.generators.vllm.engine_node import EngineNode

if TYPE_CHECKING:
    from vllm.engine.arg_utils import AsyncEngineArgs

WORKER_EXTENSION = "asyncrl.weights.vllm.engine_weights.PublicationWorker"

CPU_BLOCK_TOKENS = 32
"""Tokens in a key-value block on CPU: the smallest size that vLLM supports, to let short prompts share prefixes."""
BATCHED_TOKENS = 8192
"""Most tokens in one engine step, unless the context is longer: no prompt is prefilled in pieces."""

_OF_RECIPE = {
    "model": "model.path",
    "max_model_len": "model.max_context",
    "reasoning_parser": "model.reasoning_parser",
    "seed": "seed",
}
"""Arguments that a key of the recipe sets for all pools."""
_OF_POOL = {
    "dtype": "dtype",
    "max_num_seqs": "max_running",
    "kv_cache_memory_bytes": "kv_cache_mb",
    "gpu_memory_utilization": "gpu_memory_share",
    "tensor_parallel_size": "tensor_parallel",
    "data_parallel_size": "data_parallel",
    "nnodes": "engine_nodes",
}
"""Arguments that a key of the pool sets."""
_OF_ADAPTERS = (
    "enable_lora",
    "max_loras",
    "max_cpu_loras",
    "max_lora_rank",
    "lora_dtype",
    "lora_target_modules",
    "fully_sharded_loras",
)
_OF_RANKS = (
    "data_parallel_rank",
    "data_parallel_start_rank",
    "data_parallel_size_local",
    "data_parallel_address",
    "data_parallel_rpc_port",
    "data_parallel_backend",
    "data_parallel_hybrid_lb",
    "data_parallel_external_lb",
    "data_parallel_multi_port_external_lb",
    "enable_elastic_ep",
)
_OF_NODES = ("node_rank", "master_addr", "master_port")
_DRAFTS = "speculative_config"
_NEEDED = {
    "load_format": "weights are only read from safetensors files, never unpickled",
    "skip_tokenizer_init": "text becomes tokens outside the engine",
    "logprobs_mode": "the learner needs the log-probabilities of the distribution that was sampled from",
    "weight_transfer_config": "publications reach the engine through it",
    "worker_extension_cls": "publications reach the engine through it",
    "additional_config": "the engine's threads are set in it",
    "distributed_executor_backend": "generators choose it by the device",
    "worker_cls": "generators choose it by the device",
    **dict.fromkeys(_OF_ADAPTERS, "it follows from learner.lora"),
    **dict.fromkeys(("enable_return_routed_experts", "aux_output_config"), "it follows from learner.experts.replay"),
    "prefill_context_parallel_size": "GPUs that divide a prompt between them are not counted in an engine's",
    "enable_eplb": "experts that move between workers would not be where a publication puts their weights",
    **dict.fromkeys(_OF_RANKS, "an engine and all its ranks are on the node where its generator is"),
    **dict.fromkeys(_OF_NODES, "the nodes of an engine find each other"),
}
"""Arguments that asyncrl needs as they are, and why."""


class EngineSettings(msgspec.Struct, frozen=True):
    """What one engine is started with.

    Attributes:
        config: the engine's pool.
        model_path: a Hugging Face folder; its weights are version 0.
        max_context: most tokens of a prompt and its completion together.
        seed: seed of the sampling; engines of one pool need different seeds, to sample different tokens.
        adapters: what is published are adapters with these settings; None if it is whole weights.
        yields: on a CPU, whether the engine has a lower priority than the process that starts it and those beside it.
        tells_experts: whether the engine says which experts it sends tokens to.
        published: whether new weights will be published to it.
        node: which node of the engine the process is on that starts it.
    """

    config: GeneratorsConfig
    model_path: str
    max_context: int
    seed: int = 0
    adapters: AdapterSettings | None = None
    yields: bool = False
    tells_experts: bool = False
    published: bool = True
    node: EngineNode = EngineNode()


def check_cpu_arguments(arguments: Mapping[str, Any], pool: str) -> None:
    """Refuse what only engines on GPUs can have: stages of layers, and tokens that are drafted before they are sampled.

    Args:
        pool: the pool's place in the recipe.

    Raises:
        RecipeError: the argument is there.
    """
    if PIPELINE in arguments:
        problem = "it cannot be used on a CPU, where an engine has no pipeline stages"
        remedy = f"leave it out; {pool}.tensor_parallel divides each layer over several workers"
        raise RecipeError(f"{pool}.engine.{PIPELINE}", problem, remedy)
    if _DRAFTS in arguments:
        # vLLM 0.32 divides the logits of drafted tokens by memory that nobody has written, in place of the temperature.
        problem = "it cannot be used on a CPU, where vLLM samples drafted tokens at a wrong temperature"
        raise RecipeError(f"{pool}.engine.{_DRAFTS}", problem, "leave it out")


def check_engine_arguments(arguments: Mapping[str, Any], pool: str) -> None:
    """Refuse arguments that vLLM does not have or that asyncrl sets. Without vLLM, names are not compared with its own.

    Args:
        pool: the pool's place in the recipe.

    Raises:
        RecipeError: the first argument that is wrong, with what would be right.
    """
    known = _vllm_arguments()
    for name in arguments:
        place = f"{pool}.engine.{name}"
        if name in _OF_RECIPE or name in _OF_POOL:
            key = _OF_RECIPE.get(name) or f"{pool}.{_OF_POOL[name]}"
            raise RecipeError(place, "the recipe has a key of its own for it", f"set {key}")
        if name in _NEEDED:
            raise RecipeError(place, f"it cannot be changed: {_NEEDED[name]}", "leave it out")
        if known and name not in known:
            near = get_close_matches(name, known, n=1)
            remedy = f"did you mean `{near[0]}`?" if near else "see the engine arguments in vLLM's documentation"
            raise RecipeError(place, "vLLM's engine has no such argument", remedy)
    stages = arguments.get(PIPELINE, 1)
    if not isinstance(stages, int) or stages < 1:
        raise RecipeError(
            f"{pool}.engine.{PIPELINE}", f"{stages!r} is not a number of pipeline stages", "set it to an integer >= 1"
        )


@cache
def _vllm_arguments() -> frozenset[str]:
    """Return the names of vLLM's engine arguments, read from its source, because importing vLLM takes many seconds."""
    vllm = find_spec("vllm")
    source = Path(vllm.origin if vllm and vllm.origin else "nowhere").parent / "engine" / "arg_utils.py"
    return frozenset(
        field.target.id
        for node in (ast.parse(source.read_text()).body if source.is_file() else ())
        if isinstance(node, ast.ClassDef) and node.name in ("EngineArgs", "AsyncEngineArgs")
        for field in node.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name) and not field.target.id.startswith("_")
    )


def engine_arguments(settings: EngineSettings) -> "AsyncEngineArgs":
    """Return all arguments of an engine; imports vLLM."""
    from vllm.config.weight_transfer import WeightTransferConfig
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.platforms import current_platform

    inspect_models_here()
    config = settings.config
    arguments = {
        "max_num_batched_tokens": max(BATCHED_TOKENS, settings.max_context),
        "enable_prefix_caching": True,
        "disable_log_stats": True,
        # Beside it, Mistral's own format lies in a folder of theirs, which vLLM would prefer, and the learner does not read.
        "config_format": "hf",
        **(_cpu_arguments(settings) if current_platform.is_cpu() else {"gpu_memory_utilization": config.gpu_memory_share}),
        **({} if settings.adapters is None else _lora_arguments(settings.adapters)),
        **config.engine,
    }
    if settings.node.count > 1:
        node = settings.node
        arguments |= {"nnodes": node.count, "node_rank": node.number, "master_addr": node.host, "master_port": node.port}
        arguments["distributed_executor_backend"] = "mp"  # vLLM knows no other here
    made = AsyncEngineArgs
    if settings.tells_experts and current_platform.is_cpu():
        from asyncrl.generators.vllm.cpu.returned_experts import TellingEngineArgs  # imports vLLM

        made = TellingEngineArgs
    elif settings.tells_experts:
        arguments["enable_return_routed_experts"] = True
    return made(
        model=settings.model_path,
        load_format="safetensors",
        skip_tokenizer_init=True,
        dtype=config.dtype,
        seed=settings.seed,
        max_model_len=settings.max_context,
        max_num_seqs=-(-config.max_running // config.data_parallel),  # of each rank
        tensor_parallel_size=config.tensor_parallel,
        data_parallel_size=config.data_parallel,
        logprobs_mode="processed_logprobs",  # of the distribution that is sampled from; see Sampling.convention
        weight_transfer_config=WeightTransferConfig(backend=VLLM_BACKEND),
        worker_extension_cls=WORKER_EXTENSION,
        **arguments,
    )


def try_engine_arguments(settings: EngineSettings, place: str) -> None:
    """Have vLLM check the user's own arguments of a pool's engines as it does when one starts; imports vLLM.

    Args:
        settings: of the model's folder, only the configuration is read.
        place: the pool's place in the recipe.

    Raises:
        RecipeError: vLLM refuses them.
    """
    try:
        engine_arguments(settings).create_engine_config()
    except RecipeError:
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        remedy = "correct it, or leave it out; see the engine arguments in vLLM's documentation"
        asked = f"{dict(settings.config.engine)}{' and to say which experts it chose' * settings.tells_experts}"
        remedy += ", or set learner.experts.replay to false" * settings.tells_experts
        raise RecipeError(f"{place}.engine", f"vLLM refuses {asked}: {reason}", remedy) from error


def _lora_arguments(adapters: AdapterSettings) -> dict[str, Any]:
    from vllm.config.lora import MaxLoRARanks

    buffers = adapters.versions + 1  # one more, to write the next version into
    return {
        "enable_lora": True,
        "max_loras": buffers,
        "max_cpu_loras": buffers,
        "max_lora_rank": min(rank for rank in get_args(MaxLoRARanks) if rank >= adapters.rank),
        "lora_target_modules": list(adapters.targets),
    }


def _cpu_arguments(settings: EngineSettings) -> dict[str, Any]:
    from asyncrl.generators.vllm.cpu.worker import IN_PROCESS, IN_PROCESSES, worker_config

    config = settings.config
    check_cpu_arguments(config.engine, MAIN_POOL)
    return {
        "kv_cache_memory_bytes": (config.kv_cache_mb << 20) // config.engine_workers,  # each has its part of it
        "block_size": CPU_BLOCK_TOKENS,
        # Where a processor has AMX, vLLM would take a kernel that lets go of weights which the next publication needs.
        **({"attention_backend": "CPU_MLA"} if _is_latent(settings) else {}),
        # Compiling takes longer than a small run, and a compiled graph would keep using its first packed weights.
        "enforce_eager": True,
        "distributed_executor_backend": IN_PROCESS if config.tensor_parallel == 1 else IN_PROCESSES,
        "worker_cls": "asyncrl.generators.vllm.cpu.worker.ThreadedCpuWorker",
        "additional_config": worker_config(config.count, config.engine_workers // settings.node.count, yields=settings.yields),
    }


def _is_latent(settings: EngineSettings) -> bool:
    """Whether the model's attention is latent."""
    config = Path(settings.model_path) / "config.json"
    return config.is_file() and json.loads(config.read_text()).get("kv_lora_rank") is not None
