"""A real vLLM engine that says which experts it sent tokens to; one start for each way in which experts are divided."""

import asyncio
import copy
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from chat_tokenizers import make_tokenizer
from safetensors.torch import load_file
from small_engine import CONFIG, LONGEST, NO_STOP, SIZES, perturb, publish, rule_out_stopping
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

from asyncrl.core.ids import NOT_SAMPLED, PolicyVersion
from asyncrl.core.publication import Shard
from asyncrl.core.recipe.generators import GeneratorsConfig
from asyncrl.core.trajectory import Sampling, Trajectory
from asyncrl.generators.token_stream import TokenStream
from asyncrl.generators.vllm.cpu.engine_process import EngineProcessServer
from asyncrl.generators.vllm.engine import VllmEngine
from asyncrl.generators.vllm.engine_arguments import EngineSettings
from asyncrl.weights.shm.shared_tensors import SharedMemory

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(660)]  # an engine may take ten minutes to start

PARALLEL = {
    "one worker": CONFIG,
    "two workers that share experts": msgspec.structs.replace(CONFIG, tensor_parallel=2, engine={"enable_expert_parallel": True}),
    "two ranks that share experts": msgspec.structs.replace(CONFIG, data_parallel=2, engine={"enable_expert_parallel": True}),
}


@pytest.fixture(scope="module")
def model() -> Qwen3MoeForCausalLM:
    torch.manual_seed(0)
    experts = {"num_experts": 20, "num_experts_per_tok": 3, "moe_intermediate_size": 64, "norm_topk_prob": True}
    config = Qwen3MoeConfig(**SIZES | {"num_hidden_layers": 3, "num_key_value_heads": 2}, **experts, mlp_only_layers=[1])
    model = Qwen3MoeForCausalLM(config).eval()
    rule_out_stopping(model)
    return model


@pytest.fixture(scope="module", params=PARALLEL.values(), ids=PARALLEL)
async def engine(
    request: pytest.FixtureRequest, model: Qwen3MoeForCausalLM, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[VllmEngine]:
    folder = tmp_path_factory.mktemp("model")
    model.save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    config: GeneratorsConfig = request.param
    settings = EngineSettings(config, str(folder), LONGEST, tells_experts=True)
    server = EngineProcessServer.start()
    engine = await VllmEngine.start(settings, name="generator-0", start_s=600.0, answer_s=300.0, server=server)
    yield engine
    await engine.close()


async def episode(engine: VllmEngine, number: int, turns: int, has_begun: asyncio.Event | None = None) -> Trajectory:
    """Turns with something given between them; the prompt is that of other episodes of the same parity, and longer than a block
    of the cache. ``has_begun`` is set after the first turn."""
    stream = TokenStream()
    stream.append_given([5 + (token * 7 + number % 2) % 300 for token in range(70)])
    with engine.episode() as sampler:
        for turn in range(turns):
            completion = await sampler.generate(
                stream.token_ids,
                max_tokens=20 + number,
                sampling=Sampling(1.0),
                stop_token_ids=(NO_STOP,),
                known_experts=stream.known_experts,
            )
            stream.append_turn(completion, 0.0)
            stream.append_given([9, 10 + turn][: 2 * (turn + 1 < turns)])
            if has_begun is not None:
                has_begun.set()
    trajectory = stream.trajectory()
    trajectory.check()
    return trajectory


def chosen_by(model: Qwen3MoeForCausalLM, trajectory: Trajectory) -> np.ndarray:
    """The experts of Hugging Face's model in its two layers that have any, of all tokens but the last."""
    with torch.no_grad():
        ids = torch.from_numpy(trajectory.token_ids[:-1].astype(np.int64))[None]
        logits = model(ids, output_router_logits=True).router_logits
    return torch.stack([layer.topk(3).indices for layer in logits], 1).sort(-1).values.numpy()


async def test_each_token_has_the_experts_that_the_model_chooses(engine: VllmEngine, model: Qwen3MoeForCausalLM) -> None:
    """Many episodes at once, whose prompts are computed once, and whose later turns find the earlier ones in the cache."""
    for _ in range(2):  # the second time, the prompts are in the cache
        played = await asyncio.gather(*(episode(engine, number, turns=3) for number in range(6)))
        for trajectory in played:
            assert trajectory.experts is not None
            assert trajectory.experts.shape == (20, 2, 3)
            assert len(trajectory.experts) == len(trajectory) - 1
            found = np.sort(trajectory.experts.chosen(), -1)
            same = (found == chosen_by(model, trajectory)).all(-1).mean()
            assert same > 0.99  # but for ties


async def test_they_go_on_through_a_publication(engine: VllmEngine, model: Qwen3MoeForCausalLM, tmp_path: Path) -> None:
    """Tokens that a version computed keep its experts, also where the next version samples what follows."""
    before = copy.deepcopy(model.state_dict())
    has_begun = asyncio.Event()
    playing = [asyncio.create_task(episode(engine, 100 * number, 4, has_begun)) for number in range(1, 4)]
    await has_begun.wait()
    perturb(model)
    writer = SharedMemory("told", 0, str(tmp_path))
    publication = publish(writer, int(engine.version) + 1, shards(model, tmp_path / "model"))
    await engine.load_publication(publication)
    after = copy.deepcopy(model.state_dict())
    mixed = 0
    for trajectory in await asyncio.gather(*playing):
        versions = trajectory.versions()
        mixed += len(set(versions.tolist()) - {NOT_SAMPLED}) > 1
        assert trajectory.experts is not None
        first = int(np.flatnonzero(versions == publication.version)[0])
        found = np.sort(trajectory.experts.chosen(), -1)
        model.load_state_dict(before)
        assert (found == chosen_by(model, trajectory))[: first - 1].all(-1).mean() > 0.99
    model.load_state_dict(after)
    assert mixed
    (trajectory,) = [await episode(engine, 1, turns=2)]
    assert trajectory.experts is not None
    assert set(trajectory.versions().tolist()) == {NOT_SAMPLED, PolicyVersion(publication.version)}
    assert (np.sort(trajectory.experts.chosen(), -1) == chosen_by(model, trajectory)).all(-1).mean() > 0.99
    model.load_state_dict(before)


def shards(model: Qwen3MoeForCausalLM, folder: Path) -> list[Shard]:
    """The weights as they are stored, each expert by itself."""
    model.save_pretrained(folder)
    stored = load_file(folder / "model.safetensors")
    return [Shard(name, tuple(each.shape), (0,) * each.dim(), each) for name, each in stored.items()]
