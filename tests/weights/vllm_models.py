"""vLLM's models before anything is loaded, as one of several workers of an engine has them, in one process."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from transformers import PretrainedConfig


@contextmanager
def vllm_model(
    config: PretrainedConfig, folder: Path, worker: int, tensor: int, *, data: int = 1, whole_experts: bool = False
) -> Iterator[torch.nn.Module]:
    """Make the model of ``config``. Loaders ask vLLM's groups for their place, so the place holds meanwhile.

    Args:
        folder: an empty folder for the configuration.
        tensor: workers that divide each layer.
        data: data-parallel ranks, each of so many workers.
        whole_experts: whether workers share out the experts.
    """
    from vllm.config import set_current_vllm_config
    from vllm.distributed import parallel_state
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.model_executor.models import ModelRegistry, registry

    (architecture,) = config.architectures
    module, name = registry._VLLM_MODELS[architecture]
    # A class that is not registered is first looked at in a process of its own, which takes as long as importing vLLM.
    ModelRegistry.register_model(architecture, getattr(import_module(f"vllm.model_executor.models.{module}"), name))
    config.save_pretrained(folder)
    wanted: dict[str, Any] = {"skip_tokenizer_init": True, "dtype": "float32", "enforce_eager": True, "max_model_len": 64}
    if hasattr(config, "kv_lora_rank"):  # as engines have it: with AMX, vLLM would take another, which packs these weights
        wanted["attention_backend"] = "CPU_MLA"
    settings = EngineArgs(model=str(folder), **wanted).create_engine_config()
    settings.parallel_config.tensor_parallel_size = tensor
    settings.parallel_config.data_parallel_size = data
    settings.parallel_config.enable_expert_parallel = whole_experts
    rank, in_rank = divmod(worker, tensor)
    alone, every, own, across = _group(0, 1), _group(worker, tensor * data), _group(in_rank, tensor), _group(rank, data)
    groups = {"_TP": own, "_PP": alone, "_DP": across, "_PCP": alone, "_DCP": alone, "_EP": every, "_WORLD": own}
    with set_current_vllm_config(settings), mock.patch.multiple(parallel_state, **groups):
        yield initialize_model(settings)


def _group(rank: int, size: int) -> mock.Mock:
    device_group = mock.Mock(**{"size.return_value": size, "rank.return_value": rank})
    return mock.Mock(
        world_size=size, rank_in_group=rank, is_first_rank=rank == 0, is_last_rank=rank == size - 1, device_group=device_group
    )
