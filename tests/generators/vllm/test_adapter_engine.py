"""A real vLLM engine to which adapters alone are published: one start for the whole module, with two versions side by side."""

import asyncio
import copy
from collections.abc import AsyncIterator

import numpy as np
import pytest
import torch
from small_engine import NO_STOP, UNENDING, distributions, publish, small_model, started
from transformers import Qwen3ForCausalLM

from asyncrl.core.adapters import AdapterSettings
from asyncrl.core.errors import WeightMismatch
from asyncrl.core.publication import Shard
from asyncrl.core.trajectory import Sampling
from asyncrl.generators.completion import Completion, Sampler
from asyncrl.generators.vllm.engine import VllmEngine

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(660)]  # an engine may take ten minutes to start

SETTINGS = AdapterSettings(
    rank=3, alpha=12.0, targets=("down_proj", "k_proj", "o_proj", "q_proj", "up_proj", "v_proj"), versions=2
)
"""Some projections that vLLM packs have no adapter (gate_proj), and the rank is none of those that vLLM has buffers for."""
PROMPT = list(range(5, 75))
"""More than two blocks of vLLM's prefix cache."""


@pytest.fixture(scope="module")
def base() -> Qwen3ForCausalLM:
    return small_model()


@pytest.fixture(scope="module")
async def engine(base: Qwen3ForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[VllmEngine]:
    folder = tmp_path_factory.mktemp("model")
    base.save_pretrained(folder)
    engine = await started(folder, SETTINGS)
    yield engine
    await engine.close()


def projections(model: Qwen3ForCausalLM) -> dict[str, torch.nn.Parameter]:
    return {
        name.removesuffix(".weight"): weight
        for name, weight in model.named_parameters()
        if name.removesuffix(".weight").rsplit(".", 1)[-1] in SETTINGS.targets
    }


def adapters(base: Qwen3ForCausalLM, version: int, rank: int = SETTINGS.rank) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(version)
    matrices = {
        name: (
            torch.randn(rank, weight.shape[1], generator=generator) / 8,
            torch.randn(weight.shape[0], rank, generator=generator) / 8,
        )
        for name, weight in projections(base).items()
    }
    for name, (_, second) in matrices.items():
        if name.endswith(("o_proj", "down_proj")):
            second[0] = 0.0  # the small model keeps what rules out its stop token in channel 0
    return matrices


def shards(matrices: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> list[Shard]:
    return [
        Shard(f"base_model.model.{name}.lora_{letter}.weight", tuple(matrix.shape), (0, 0), matrix)
        for name, pair in matrices.items()
        for letter, matrix in zip("AB", pair, strict=True)
    ]


def merged(base: Qwen3ForCausalLM, version: int) -> Qwen3ForCausalLM:
    """The model of a version, by adding what its adapters add to the weights."""
    model = copy.deepcopy(base)
    if version:
        with torch.no_grad():
            weights = projections(model)
            for name, (first, second) in adapters(base, version).items():
                weights[name] += SETTINGS.alpha / SETTINGS.rank * second @ first
    return model


def expected(model: Qwen3ForCausalLM, prompt: list[int], sampled: np.ndarray) -> np.ndarray:
    chosen = torch.tensor(sampled.tolist())[:, None]
    return distributions(model, prompt, sampled.tolist()).gather(1, chosen)[:, 0].numpy()


def sample(sampler: Sampler, prompt: list[int], tokens: int) -> asyncio.Task[Completion]:
    return asyncio.create_task(sampler.generate(prompt, max_tokens=tokens, sampling=Sampling(1.0), stop_token_ids=(NO_STOP,)))


async def test_each_episode_is_sampled_by_the_version_it_began_with(engine, base, writer) -> None:
    """An episode that began under a version keeps it beside episodes of the next one, with the same prompt in the same batches;
    once the bound admits it no longer, it goes on with the version that has taken its place, and says so. This is played with
    longer and longer turns until one lasts from before the first loading to after the second."""
    tokens = 400
    while True:
        began = engine.version
        versions = began, began + 1, began + 2
        models = {version: merged(base, version) for version in versions}

        def distance(completion: Completion, version: int, models=models) -> np.ndarray:
            return np.abs(completion.logprobs - expected(models[version], PROMPT, completion.token_ids))

        with engine.episode() as old:
            running = sample(old, PROMPT, tokens)
            await sample(engine, PROMPT[:3], 2)  # the turn has begun before it
            first = publish(writer, versions[1], shards(adapters(base, versions[1])))
            assert await engine.load_publication(first) == first.fingerprint
            assert engine.version == versions[1]
            with engine.episode() as new:
                sampled = await asyncio.gather(*(sample(sampler, PROMPT, 30) for sampler in (old, new) * 4))
            assert [[span.version for span in completion.spans] for completion in sampled] == [[began], [began + 1]] * 4
            assert max(distance(completion, completion.spans[0].version).max() for completion in sampled) < 1e-3

            second = publish(writer, versions[2], shards(adapters(base, versions[2])))
            assert await engine.load_publication(second) == second.fingerprint
            turn, later = await running, await sample(old, PROMPT, 30)
        assert [span.version for span in later.spans] == [began + 2]
        assert distance(later, began + 2).max() < 1e-3
        assert turn.spans[0].version == began
        boundary = turn.spans[0].end
        assert distance(turn, began)[:boundary].max() < 1e-3
        assert set(engine.use().tokens_by_version) == set(range(began + 3))
        if tokens - boundary > 20:
            break
        tokens = min(2 * tokens, UNENDING)
    assert [span.version for span in turn.spans] == [began, began + 2]
    assert distance(turn, began)[boundary:].max() > 1e-2


async def test_adapters_of_another_rank_are_refused_and_the_engine_keeps_what_it_has(engine, base, writer) -> None:
    version = engine.version
    with pytest.raises(WeightMismatch, match=r"the engine's is of rank 3 for down_proj"):
        await engine.load_publication(publish(writer, version + 1, shards(adapters(base, 9, rank=4))))
    completion = await sample(engine, PROMPT, 20)
    assert [span.version for span in completion.spans] == [version]
    assert np.abs(completion.logprobs - expected(merged(base, version), PROMPT, completion.token_ids)).max() < 1e-3
