"""A real vLLM engine reads a folder that others have saved as transformers and the learner do, and takes publications of it."""

from pathlib import Path

import numpy as np
import pytest
import torch
from chat_tokenizers import make_tokenizer
from foreign_folders import make_foreign
from small_engine import NO_STOP, distributions, publish, small_model, started
from transformers import AutoModelForCausalLM, PreTrainedModel

from asyncrl.core.publication import Shard
from asyncrl.core.trajectory import Sampling
from asyncrl.generators.vllm.engine import VllmEngine
from asyncrl.weights.shm.shared_tensors import SharedMemory

PROMPT = list(range(5, 45))


async def difference(engine: VllmEngine, model: PreTrainedModel) -> float:
    """How far the engine's log-probabilities of what it samples are from those of transformers."""
    sampled = await engine.generate(PROMPT, max_tokens=12, sampling=Sampling(1.0), stop_token_ids=(NO_STOP,))
    tokens = sampled.token_ids.tolist()
    expected = distributions(model, PROMPT, tokens).gather(1, torch.tensor(tokens)[:, None])[:, 0].numpy()
    return float(np.abs(sampled.logprobs - expected).max())


@pytest.mark.timeout(660)
async def test_an_engine_computes_what_a_foreign_folder_says_and_takes_its_publications(
    tmp_path: Path, writer: SharedMemory
) -> None:
    small_model().save_pretrained(tmp_path)
    make_tokenizer().save_pretrained(tmp_path)
    own = make_foreign(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32).eval()
    engine = await started(tmp_path)
    try:
        assert await difference(engine, model) < 1e-3
        changed = {name: tensor.float() * 1.25 for name, tensor in own.items()}
        model.load_state_dict(changed, strict=False)
        parts = [Shard(name, tuple(tensor.shape), (0,) * tensor.dim(), tensor) for name, tensor in changed.items()]
        publication = publish(writer, 1, parts)
        assert await engine.load_publication(publication) == publication.fingerprint
        assert await difference(engine, model) < 1e-3
    finally:
        await engine.close()
