"""Shows that what Megatron's ranks publish is what an engine samples with, whatever divides the model on either side.

Ranks train five versions, publish each, and compute the log-probabilities of some rows with it. An engine installs the same five
publications, in the table while it samples, and scores the same rows.
``PYTHONPATH=tests:tests/learners python tests/learners/publication_proof.py`` prints the table for all models, layouts and
engines; the test takes one column of it.
"""

import asyncio
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from learner_samples import make_batch, make_model, make_recipe
from rank_side import new_learner
from ranks import run_ranks

from asyncrl.core.ids import PolicyVersion
from asyncrl.core.publication import Publication
from asyncrl.core.recipe.generators import GeneratorsConfig
from asyncrl.core.recipe.learner import ExpertsConfig
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.trajectory import Sampling
from asyncrl.generators.completion import Completion
from asyncrl.generators.vllm.cpu.engine_process import EngineProcessServer
from asyncrl.generators.vllm.engine import VllmEngine
from asyncrl.generators.vllm.engine_arguments import EngineSettings
from asyncrl.learners.rank import RankSpec
from asyncrl.run.models.model_shape import read_shape
from asyncrl.weights.publication_merge import merge
from asyncrl.weights.shm.shared_tensors import SharedMemory

VERSIONS = 5
COMMON = {"head_dim": 32, "hidden_size": 64, "intermediate_size": 64, "vocab_size": 200}
MODELS = {
    "qwen3": ("qwen3", COMMON),
    "llama-tied": ("llama", COMMON | {"tie_word_embeddings": True}),
    "qwen3-moe": ("qwen3_moe", COMMON | {"moe_intermediate_size": 64}),
    "qwen3-yarn": ("qwen3_yarn", COMMON),
    "mistral": ("mistral", COMMON),
    "mixtral": ("mixtral", COMMON),
    "glm4-moe": ("glm4_moe", COMMON | {"moe_intermediate_size": 64}),
    "gpt-oss": ("gpt_oss", COMMON),
    "deepseek-v3": (
        "deepseek_v3",
        {"hidden_size": 64, "intermediate_size": 64, "vocab_size": 200, "moe_intermediate_size": 64}
        | {"qk_nope_head_dim": 32, "qk_rope_head_dim": 64, "v_head_dim": 32, "kv_lora_rank": 512},
    ),
    "qwen2-moe": (
        "qwen2_moe",
        {"hidden_size": 128, "intermediate_size": 64, "vocab_size": 200}
        | {"moe_intermediate_size": 64, "shared_expert_intermediate_size": 64},
    ),
}
WITH_EXPERTS = ("qwen3-moe", "mixtral", "glm4-moe", "gpt-oss", "deepseek-v3", "qwen2-moe")
LAYOUTS: dict[str, dict[str, int]] = {
    "tp2-pp2": {"tensor": 2, "pipeline": 2},
    "ep2": {"data": 2, "expert": 2},
    "pp2-vpp2": {"pipeline": 2, "virtual_pipeline": 2},
}
ROWS = [[int(token) for token in np.random.default_rng(number).integers(1, 200, 40 + number)] for number in range(4)]


class Published(NamedTuple):
    """One version: where it lies, and the learner's log-probabilities of :data:`ROWS`."""

    publication: Publication
    logprobs: list[np.ndarray]


def train_and_publish(
    spec: RankSpec, recipe: Recipe, folder: Path, first: int, target: Path
) -> list[tuple[Publication, list[np.ndarray] | None]]:
    """What each rank does: it trains a version, writes it, and computes the log-probabilities."""
    learner = new_learner(spec, recipe, folder)
    batch, episodes = make_batch()
    done = []
    for version in range(first, first + VERSIONS):
        learner.step(batch, {name[:2]: episodes[name[:2]] for name in learner.rows_needed(batch)})
        place = target / str(version)
        place.mkdir(exist_ok=True)
        written = SharedMemory("proof", spec.rank, str(place)).write(PolicyVersion(version), learner.shards())
        done.append((written, learner.log_probabilities(ROWS)))
    learner.close()
    return done


def published(folder: Path, layout: dict[str, int], first: int, target: Path) -> list[Published]:
    """Publish versions ``first`` onwards from ranks in a layout."""
    options = dict(layout)
    grid = {name: options.pop(name, 1) for name in ("tensor", "pipeline", "data")}
    further = {name if name == "virtual_pipeline" else f"{name}_parallel": size for name, size in options.items()}
    balance = "bias" if read_shape(str(folder)).architecture.expert_names.choice_bias else "none"
    recipe = make_recipe(folder, **grid, **further, experts=ExpertsConfig(balance=balance, bias_rate=0.05))
    results = run_ranks(train_and_publish, recipe, folder, first, target, **layout, deadline=240.0)
    versions = []
    for parts in zip(*results, strict=True):
        (logprobs, *_) = [found for _, found in parts if found is not None]
        versions.append(Published(merge([part for part, _ in parts]), logprobs))
    return versions


async def sampling(engine: VllmEngine) -> list["asyncio.Task[Completion]"]:
    """Begin a request for each row, and wait until one runs."""
    asked = [
        asyncio.ensure_future(engine.generate(row, max_tokens=55, sampling=Sampling(temperature=1.0), stop_token_ids=()))
        for row in ROWS
    ]
    while not (await engine.report_load()).running and not all(each.done() for each in asked):
        pass
    return asked


async def gaps(engine: VllmEngine, versions: list[Published], going_on: list[int] | None = None) -> list[tuple[float, float]]:
    """Install each version, and return the mean and the largest difference of log-probabilities.

    Args:
        going_on: gets, for each version, how many requests have tokens of it and of the one before. None to have no requests.
    """
    found = []
    for publication, logprobs in versions:
        asked = [] if going_on is None else await sampling(engine)
        assert await engine.load_publication(publication) == publication.fingerprint
        if going_on is not None:
            seen = [{span.version for span in each.spans} for each in await asyncio.gather(*asked)]
            going_on.append(sum(publication.version in each and len(each) > 1 for each in seen))
        scored = await engine.score(ROWS)
        assert {row.version for row in scored} == {publication.version}
        distances = np.abs(np.concatenate([row.logprobs for row in scored]) - np.concatenate(logprobs))
        found.append((float(distances.mean()), float(distances.max())))
    return found


async def started(folder: Path, tensor_parallel: int, dtype: str) -> VllmEngine:
    config = GeneratorsConfig(count=1, dtype=dtype, max_running=8, kv_cache_mb=16, tensor_parallel=tensor_parallel)
    settings, server = EngineSettings(config, str(folder), 100), EngineProcessServer.start()
    return await VllmEngine.start(settings, name="generator-0", start_s=400.0, answer_s=120.0, server=server)


async def table(chosen: list[str]) -> None:
    """Print every row of the table for the ``chosen`` models."""
    for name in chosen:
        architecture, overrides = MODELS[name]
        with TemporaryDirectory() as temporary:
            folder = make_model(Path(temporary) / "model", architecture, **overrides)
            layouts = {key: layout for key, layout in LAYOUTS.items() if key != "ep2" or name in WITH_EXPERTS}
            versions = {}
            for number, (key, layout) in enumerate(layouts.items()):
                versions[key] = published(folder, layout, 1 + number * VERSIONS, Path(temporary))
            for tensor_parallel, dtype in ((1, "float32"), (2, "float32"), (1, "bfloat16"), (2, "bfloat16")):
                engine = await started(folder, tensor_parallel, dtype)
                try:
                    for key, each in versions.items():
                        going_on: list[int] = []
                        rows = await gaps(engine, each, going_on)
                        told = "  ".join(f"{mean:.1e}/{worst:.1e}" for mean, worst in rows)
                        sys.stdout.write(f"{name:11s} {key:9s} engine TP{tensor_parallel} {dtype:9s} mean/worst: {told}")
                        sys.stdout.write(f"  went on, of {len(ROWS)}: {going_on}\n")
                        sys.stdout.flush()
                finally:
                    await engine.close()


if __name__ == "__main__":
    asyncio.run(table(sys.argv[1:] or list(MODELS)))
