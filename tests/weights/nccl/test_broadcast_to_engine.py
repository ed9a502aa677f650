"""A real engine of two workers that takes weights from two ranks by broadcasts, with gloo in NCCL's place."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch
from fork_server import WITH_GLOO_ENGINE
from gloo_collective import Gloo
from transformers import Qwen3Config, Qwen3ForCausalLM

from asyncrl.core.ids import PolicyVersion
from asyncrl.core.publication import Publication, Shard
from asyncrl.core.recipe.schema import GeneratorsConfig
from asyncrl.core.trajectory import Sampling
from asyncrl.generators.completion import Completion
from asyncrl.generators.vllm.cpu.engine_process import EngineProcessServer
from asyncrl.generators.vllm.engine import VllmEngine
from asyncrl.generators.vllm.engine_arguments import EngineSettings
from asyncrl.weights.nccl.broadcast_sender import BroadcastSender
from asyncrl.weights.publication_merge import merge
from asyncrl.weights.shm.shared_tensors import SharedMemory

RANKS = 2
PROMPT = list(range(5, 25))
PIECES: Counter[str] = Counter()


class GlooEngineServer(EngineProcessServer):
    """The server of engines; what is forked from it for this one imports ``gloo_engine``."""

    @contextmanager
    def used_by_vllm(self) -> Iterator[None]:
        from vllm.v1.engine import utils

        with mock.patch.object(utils, "get_mp_context", return_value=WITH_GLOO_ENGINE):
            yield


class Counting(Gloo):
    """Gloo that counts what member 0 sends."""

    def join(self, token, member, members, device):
        group = super().join(token, member, members, device)
        send = group.send

        def counting(piece):
            PIECES["sent"] += 1
            send(piece)

        group.send = counting
        return group


class Ranks:
    """Two tensor-parallel ranks: each has half of the rows of each matrix, and the first has all else."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        cpu = torch.device("cpu")
        self._files = [stack.enter_context(closing(SharedMemory("test", rank, str(folder)))) for rank in range(RANKS)]
        self._senders = [
            stack.enter_context(closing(BroadcastSender(rank, "127.0.0.1", cpu, 120.0, Counting()))) for rank in range(RANKS)
        ]

    def publish(self, version: int, model: Qwen3ForCausalLM) -> Publication:
        parts: list[list[Shard]] = [[] for _ in range(RANKS)]
        for name, tensor in model.named_parameters():
            halves = tensor.detach().chunk(RANKS) if tensor.dim() == 2 else [tensor.detach()]
            for rank, half in enumerate(halves):
                parts[rank].append(Shard(name, tuple(tensor.shape), (rank * len(half), 0)[: tensor.dim()], half))
        ranks = zip(self._senders, self._files, parts, strict=True)
        return merge([sender.offer(file.write(PolicyVersion(version), part)) for sender, file, part in ranks])


def make_model() -> Qwen3ForCausalLM:
    torch.manual_seed(0)
    sizes = {"vocab_size": 320, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    rest = {"head_dim": 32, "intermediate_size": 96, "max_position_embeddings": 1024, "tie_word_embeddings": True}
    return Qwen3ForCausalLM(Qwen3Config(**sizes, **rest, initializer_range=0.2, dtype="float32")).eval()


def perturb(model: Qwen3ForCausalLM) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)


def reference_logprobs(model: Qwen3ForCausalLM, completion: Completion) -> np.ndarray:
    sampled = completion.token_ids.tolist()
    with torch.no_grad():
        logits = model(torch.tensor([[*PROMPT, *sampled]])).logits[0, len(PROMPT) - 1 : -1]
    return torch.log_softmax(logits, -1).gather(1, torch.tensor(sampled)[:, None])[:, 0].numpy()


async def sample(engine: VllmEngine, tokens: int) -> Completion:
    return await engine.generate(PROMPT, max_tokens=tokens, sampling=Sampling(1.0), stop_token_ids=(0,))


@pytest.mark.timeout(400)
async def test_an_engine_takes_what_ranks_broadcast_in_the_pause_and_beside_the_weights_in_use(tmp_path) -> None:
    model = make_model()
    model.save_pretrained(tmp_path / "model")
    config = GeneratorsConfig(count=1, dtype="float32", max_running=8, kv_cache_mb=64, tensor_parallel=2)
    settings = EngineSettings(config, str(tmp_path / "model"), 1024)
    engine = await VllmEngine.start(settings, name="generator-0", start_s=240.0, answer_s=120.0, server=GlooEngineServer.start())
    try:
        with ExitStack() as stack:
            ranks = Ranks(tmp_path, stack)
            for version, in_pieces in [(1, True), (2, False), (3, False)]:
                perturb(model)
                running = asyncio.create_task(sample(engine, 300))
                await engine.report_load()  # which the engine answers after it has got the request
                PIECES.clear()
                publication = ranks.publish(version, model)
                assert await engine.load_publication(publication) == publication.fingerprint
                assert (PIECES["sent"] > RANKS) is in_pieces, "whole files are one piece each here"
                assert {span.version for span in (await running).spans} <= {version - 1, version}
                after = await sample(engine, 30)
                assert {span.version for span in after.spans} == {version}
                assert np.abs(after.logprobs - reference_logprobs(model, after)).max() < 1e-3
    finally:
        await engine.close()
