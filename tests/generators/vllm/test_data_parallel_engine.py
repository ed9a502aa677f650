"""A real vLLM engine of two data-parallel ranks, which divide the experts of a model: one start for the whole module."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from chat_tokenizers import make_tokenizer
from safetensors.torch import load_file
from small_engine import CONFIG, NO_STOP, UNENDING, distributions, perturb, publish, started
from small_mixture import small_mixture
from transformers import Qwen3MoeForCausalLM

from asyncrl.core.errors import ComponentFailed, ProcessDied, WeightMismatch
from asyncrl.core.publication import LOAD, PREPARE, Shard
from asyncrl.core.trajectory import Sampling
from asyncrl.generators.completion import Completion, Sampler
from asyncrl.generators.vllm.engine import VllmEngine

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(660)]  # an engine may take ten minutes to start

TWO_RANKS = msgspec.structs.replace(CONFIG, data_parallel=2, engine={"enable_expert_parallel": True})


@pytest.fixture(scope="module")
def model() -> Qwen3MoeForCausalLM:
    return small_mixture()


@pytest.fixture(scope="module")
async def engine(model: Qwen3MoeForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[VllmEngine]:
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    engine = await started(folder, config=TWO_RANKS)
    yield engine
    await engine.close()


async def turn(sampler: Sampler, prompt: list[int], tokens: int) -> Completion:
    return await sampler.generate(prompt, max_tokens=tokens, sampling=Sampling(1.0), stop_token_ids=(NO_STOP,))


def gap(model: Qwen3MoeForCausalLM, prompt: list[int], completion: Completion) -> float:
    """The largest distance of a log-probability from that of Hugging Face's model."""
    sampled = completion.token_ids.tolist()
    expected = distributions(model, prompt, sampled).gather(1, torch.tensor(sampled)[:, None])[:, 0]
    return float(np.abs(completion.logprobs - expected.numpy()).max())


def perturbed(model: Qwen3MoeForCausalLM, folder: Path) -> list[Shard]:
    """Change the weights, and return them as they are stored, each expert by itself."""
    perturb(model)
    model.save_pretrained(folder)
    stored = load_file(folder / "model.safetensors")
    return [Shard(name, tuple(each.shape), (0,) * each.dim(), each) for name, each in stored.items()]


async def test_episodes_in_both_ranks_sample_what_the_model_says(engine: VllmEngine, model) -> None:
    """Also where one rank has more of them, and where it has none."""

    async def episode(number: int) -> None:
        with engine.episode() as sampler:
            prompt = list(range(5 + number, 25 + 4 * number))
            for tokens in (3 + 5 * number, 20):
                completion = await turn(sampler, prompt, tokens)
                assert gap(model, prompt, completion) < 1e-3
                prompt += [*completion.token_ids.tolist(), 9]

    for episodes in (1, 5):
        async with asyncio.TaskGroup() as group:
            for number in range(episodes):
                group.create_task(episode(number))
    rows = [list(range(3, 30)), list(range(40, 47))]
    for row, scored in zip(rows, await engine.score(rows), strict=True):
        expected = distributions(model, row[:1], row[1:]).gather(1, torch.tensor(row[1:])[:, None])[:, 0]
        assert np.abs(scored.logprobs - expected.numpy()).max() < 1e-3


async def test_all_ranks_change_versions_together(engine: VllmEngine, model, writer, tmp_path: Path) -> None:
    """Under longer and longer requests that run in both, until one in each rank was in the middle of its turn."""
    interrupted, tokens = 0, 200
    while interrupted < 2:
        before = engine.version
        publication = publish(writer, before + 1, perturbed(model, tmp_path / str(before)))
        with engine.episode() as first, engine.episode() as second:
            running = [asyncio.create_task(turn(sampler, [7, 8, 9], tokens)) for sampler in (first, second)]
            while (await engine.report_load()).running < 2 and not any(request.done() for request in running):
                pass
            assert await engine.load_publication(publication) == publication.fingerprint
            spans = [[span.version for span in (await request).spans] for request in running]
        assert all(versions in ([before], [before, before + 1], [before + 1]) for versions in spans)
        interrupted, tokens = sum(len(versions) == 2 for versions in spans), min(2 * tokens, UNENDING)
        with engine.episode() as first, engine.episode() as second:
            for sampler in (first, second):
                assert gap(model, [7, 8, 9], await turn(sampler, [7, 8, 9], 30)) < 1e-3


async def test_what_one_rank_cannot_load_ends_the_engine(engine: VllmEngine, model, writer, tmp_path: Path, monkeypatch) -> None:
    """The other rank, which has loaded it, waits for nobody. After this the engine is of no use.

    Requests that run go on to their end, and fail there. They are too long to end before the loading, and no longer.
    """
    core, shards = engine.llm.engine_core, perturbed(model, tmp_path)
    whole = publish(writer, 1000, shards)
    part = publish(writer, 1001, [shard for shard in shards if "q_proj" not in shard.name])
    ask = core._call_utility_async

    async def differently(method: str, *arguments: object, engine: bytes) -> object:
        if method == PREPARE:
            return None
        if method == LOAD and engine == core.core_engines[1]:
            arguments = (msgspec.msgpack.encode(part), *arguments[1:])
        return await ask(method, *arguments, engine=engine)

    monkeypatch.setattr(core, "_call_utility_async", differently)
    with engine.episode() as first, engine.episode() as second:
        running = [asyncio.create_task(turn(sampler, [7, 8, 9], 400)) for sampler in (first, second)]
        with pytest.raises(WeightMismatch, match=r"version 1000 could not be loaded: .* lacks .*q_proj"):
            await engine.load_publication(whole)
        for request in running:
            with pytest.raises(ComponentFailed, match="unknown weights"):
                await request


async def test_the_engine_ends_with_any_of_its_ranks(engine: VllmEngine) -> None:
    """The last test of this engine."""
    engine.llm.engine_core.resources.engine_manager.processes[1].kill()

    async def loads() -> None:
        while True:
            await engine.report_load()

    with pytest.raises(ProcessDied, match="the vLLM engine died"):
        await loads()
