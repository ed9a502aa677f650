"""A small model, a real vLLM engine that samples from it, and what is published to it."""

from collections.abc import Sequence
from pathlib import Path

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from asyncrl.core.adapters import AdapterSettings
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.publication import Publication, Shard
from asyncrl.core.recipe.generators import GeneratorsConfig
from asyncrl.weights.shared_memory import SharedMemory
from asyncrl.weights.transport import merge
from generators.engine import VllmEngine
from generators.engine_process import EngineProcessServer

NO_STOP = 0
CONFIG = GeneratorsConfig(count=1, dtype="float32", max_running=32, kv_cache_mb=64)
LONGEST = 512


def small_model() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=320,
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        intermediate_size=96,
        max_position_embeddings=LONGEST,
        tie_word_embeddings=True,
        initializer_range=0.2,
        dtype="float32",
    )
    return Qwen3ForCausalLM(config).eval()


async def started(folder: Path, adapters: AdapterSettings | None = None, config: GeneratorsConfig = CONFIG) -> VllmEngine:
    """An engine as a generator starts it: its process is forked from one that imports vLLM meanwhile, or has done so."""
    server, name = EngineProcessServer.start(), "generator-0"
    return await VllmEngine.start(
        config, str(folder), name=name, max_context=LONGEST, seed=0, start_s=600.0, server=server, adapters=adapters
    )


def publish(writer: SharedMemory, version: int, shards: Sequence[Shard]) -> Publication:
    return merge([writer.write(PolicyVersion(version), shards)])


def distributions(model: torch.nn.Module, prompt: list[int], sampled: list[int], temperature: float = 1.0) -> torch.Tensor:
    """Log-probabilities of every token at each sampled place, by Hugging Face's model."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *sampled]])).logits[0, len(prompt) - 1 : -1]
    return torch.log_softmax(logits / temperature, -1)
