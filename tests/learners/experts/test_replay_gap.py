"""With router replay, engine and learner differ no more in a mixture of experts than in a dense model, in bfloat16.

A real engine samples, and gets a new version while it does; the learner computes the log-probabilities of what was sampled.
Rounding alone makes both differ, and without replay a router near a tie makes more of it: it sends a token to other experts. So
does a new version, which computes earlier turns again: the row keeps the experts that each token's successor was sampled with.
"""

import asyncio
import shutil
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import rank_side
import torch
from learner_samples import batch_of, make_model, make_recipe
from publication_proof import COMMON
from ranks import run_ranks
from safetensors.torch import load_file, save_file

from asyncrl.core.episode import Episode
from asyncrl.core.ids import GroupId, PolicyVersion, TaskId
from asyncrl.core.measures.metrics import combine
from asyncrl.core.publication import Shard
from asyncrl.core.recipe.generators import GeneratorsConfig
from asyncrl.core.recipe.learner import ExpertsConfig
from asyncrl.core.trajectory import Sampling, StopReason, Trajectory
from asyncrl.generators.token_stream import TokenStream
from asyncrl.generators.vllm.cpu.engine_process import EngineProcessServer
from asyncrl.generators.vllm.engine import VllmEngine
from asyncrl.generators.vllm.engine_arguments import EngineSettings
from asyncrl.weights.publication_merge import merge
from asyncrl.weights.shm.shared_tensors import SharedMemory

pytestmark = pytest.mark.timeout(900)  # two engines, and an engine may take minutes to start

EXPERTS = {"num_experts": 64, "num_experts_per_tok": 4, "moe_intermediate_size": 64, "norm_topk_prob": True}
MODELS: dict[str, dict[str, Any]] = {"qwen3": {}, "qwen3_moe": EXPERTS}
EPISODES, TURNS = 24, 3
VERSION = PolicyVersion(1)
DENSE, WITHOUT, WITH = "dense", "without replay", "with replay"
Read = dict[str, dict[str, dict[str, float]]]
"""By rows, and by model: the learner's readings."""


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Read:
    """What the learner reads of rows of one version (``pure``) and of rows that two versions sampled (``mixed``), for the dense
    model and for the mixture without and with replay."""
    found: Read = {"pure": {}, "mixed": {}}
    for architecture, overrides in MODELS.items():
        home = tmp_path_factory.mktemp(architecture)
        first = make_model(home / "first", architecture, **COMMON | overrides)
        second = updated(first, home / "second")
        mixed, pure = asyncio.run(play(first, second, home, tells_experts=bool(overrides)))
        assert all(len({int(version) for version in each.versions()} - {-1}) == 2 for each in mixed)
        for name in (WITHOUT, WITH) if overrides else (DENSE,):
            for rows, played in (("mixed", mixed), ("pure", pure)):
                found[rows][name] = readings(second, played, replay=name == WITH)
    return found


def updated(folder: Path, target: Path) -> Path:
    """A model whose weights are those in ``folder`` after a large training step: each has moved by about a hundredth."""
    shutil.copytree(folder, target)
    weights, random = load_file(folder / "model.safetensors"), torch.Generator().manual_seed(1)
    moved = {name: each + 1e-3 * torch.randn(each.shape, generator=random) for name, each in weights.items()}
    save_file(moved, target / "model.safetensors", metadata={"format": "pt"})
    return target


async def play(first: Path, second: Path, home: Path, *, tells_experts: bool) -> tuple[list[Trajectory], list[Trajectory]]:
    """Episodes that begin with the weights of ``first`` and end with those of ``second``, version 1; others, of that alone."""
    config = GeneratorsConfig(count=1, dtype="bfloat16", max_running=EPISODES, kv_cache_mb=64)
    settings = EngineSettings(config, str(first), 128, tells_experts=tells_experts)
    engine = await VllmEngine.start(
        settings, name="generator-0", start_s=400.0, answer_s=120.0, server=EngineProcessServer.start()
    )
    one_turn, is_loaded = asyncio.Barrier(EPISODES + 1), asyncio.Event()

    async def episode(number: int) -> Trajectory:
        random, stream = np.random.default_rng(number), TokenStream()
        with engine.episode() as sampler:
            for turn in range(TURNS):
                if turn == TURNS - 1:
                    await is_loaded.wait()
                stream.append_given(random.integers(1, 200, 10).tolist())
                completion = await sampler.generate(
                    stream.token_ids,
                    max_tokens=20,
                    sampling=Sampling(1.0),
                    stop_token_ids=(0,),
                    known_experts=stream.known_experts,
                )
                stream.append_turn(completion, 0.0)
                if turn == 0 and not is_loaded.is_set():
                    await one_turn.wait()
        return stream.trajectory()

    try:
        playing = [asyncio.create_task(episode(number)) for number in range(EPISODES)]
        await one_turn.wait()
        stored = load_file(second / "model.safetensors")
        shards = [Shard(name, tuple(each.shape), (0,) * each.dim(), each.bfloat16()) for name, each in stored.items()]
        (home / "shared").mkdir()
        await engine.load_publication(merge([SharedMemory("gap", 0, str(home / "shared")).write(VERSION, shards)]))
        is_loaded.set()
        pure = (episode(EPISODES + number) for number in range(EPISODES))
        return await asyncio.gather(*playing), await asyncio.gather(*pure)
    finally:
        await engine.close()


def readings(folder: Path, played: list[Trajectory], *, replay: bool) -> dict[str, float]:
    """The learner's readings of a batch of these episodes."""
    episodes = [
        Episode(
            task_id=TaskId("task"),
            group_id=GroupId(number // 4),
            sample_index=number % 4,
            attempt=0,
            trajectories=(trajectory,),
            reward=float(number % 2),
            stop_reason=StopReason.MAX_TURNS,
            sampling=Sampling(1.0),
        )
        for number, trajectory in enumerate(played)
    ]
    batch, by_name = batch_of(episodes, version=VERSION, oldest=0)
    recipe = make_recipe(folder, dtype="bfloat16", micro_batch_tokens=512, experts=ExpertsConfig(replay=replay))
    recipe = msgspec.structs.replace(recipe, sampling=msgspec.structs.replace(recipe.sampling, temperature=1.0))
    ((reports, _, _),) = run_ranks(rank_side.train, recipe, folder, batch, by_name, 1)
    return combine(reading for report in reports for reading in report.readings)


def test_rows_of_one_version_differ_no_more_than_a_dense_model_s(read: Read) -> None:
    gaps = {name: found["mismatch/logprob_gap_mean_abs"] for name, found in read["pure"].items()}
    assert gaps[WITH] < 1.5 * gaps[DENSE], gaps
    assert gaps[WITHOUT] > 2.5 * gaps[WITH], gaps


def test_rows_of_two_versions_differ_no_more_than_a_dense_model_s(read: Read) -> None:
    """Over the tokens of both versions. Those of the first one are of other weights to the dense model too."""
    found = {name: each["kl/behaviour_k3"] for name, each in read["mixed"].items()}
    assert found[WITH] < 1.5 * found[DENSE], found
    assert found[WITHOUT] > 2.5 * found[WITH], found


def test_what_an_engine_computed_again_with_other_experts_is_what_remains(read: Read) -> None:
    """The newest version's tokens differ more in such rows than in rows of its own, and less than without replay."""
    gap = "mismatch/logprob_gap_mean_abs"
    assert read["pure"][WITH][gap] < read["mixed"][WITH][gap] < read["mixed"][WITHOUT][gap]
