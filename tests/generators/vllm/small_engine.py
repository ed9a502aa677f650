"""A small model, a real vLLM engine that samples from it, and what is published to it."""

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import PreTrainedModel, Qwen3Config, Qwen3ForCausalLM

from asyncrl.core.adapters import AdapterSettings
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.publication import Publication, Shard
from asyncrl.core.recipe.generators import GeneratorsConfig
from asyncrl.generators.vllm.cpu.engine_process import EngineProcessServer
from asyncrl.generators.vllm.engine import VllmEngine
from asyncrl.generators.vllm.engine_arguments import EngineSettings
from asyncrl.weights.publication_merge import merge
from asyncrl.weights.shm.shared_tensors import SharedMemory

NO_STOP = 0
"""A stop token that the small model never samples, so that requests are as long as a test says."""
CONFIG = GeneratorsConfig(count=1, dtype="float32", max_running=32, kv_cache_mb=64)
LONGEST = 8192
UNENDING = 8000
"""Tokens of a request that a test cancels: the engine samples them for many seconds."""


SIZES = {
    "vocab_size": 320,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": LONGEST,
    "initializer_range": 0.2,
    "dtype": "float32",
}


def small_model() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(**SIZES, intermediate_size=96, tie_word_embeddings=True)
    model = Qwen3ForCausalLM(config).eval()
    rule_out_stopping(model)
    return model


def add_noise(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)


def perturb(model: PreTrainedModel) -> None:
    """Change the weights of a small model, which goes on to never sample :data:`NO_STOP`."""
    add_noise(model)
    rule_out_stopping(model)


def rule_out_stopping(model: PreTrainedModel) -> None:
    """Have channel 0 of what passes through the layers be 1 at every token, and give the row of the stop token -1000 there."""
    with torch.no_grad():
        model.get_input_embeddings().weight[:, 0] = 1.0
        rows = model.get_output_embeddings().weight
        rows[:, 0], rows[NO_STOP, 0], model.model.norm.weight[0] = 1.0, -1000.0, 1.0
        for name, parameter in model.named_parameters():
            if "o_proj" in name or "down_proj" in name:
                parameter[..., 0, :] = 0.0  # [channels, ...] of a layer, or of each expert


async def started(folder: Path, adapters: AdapterSettings | None = None, config: GeneratorsConfig = CONFIG) -> VllmEngine:
    """An engine as a generator starts it: its process is forked from one that imports vLLM meanwhile, or has done so."""
    settings = EngineSettings(config, str(folder), LONGEST, adapters=adapters)
    return await VllmEngine.start(settings, name="generator-0", start_s=600.0, answer_s=300.0, server=EngineProcessServer.start())


def publish(writer: SharedMemory, version: int, shards: Sequence[Shard]) -> Publication:
    return merge([writer.write(PolicyVersion(version), shards)])


def distributions(model: torch.nn.Module, prompt: list[int], sampled: list[int], temperature: float = 1.0) -> torch.Tensor:
    """Log-probabilities of every token at each sampled place, by Hugging Face's model."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *sampled]])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits / temperature, -1)
