"""Part 6: an engine's throughput, new weights while it samples, its log-probabilities beside the model's own, and a short run."""

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np
import torch

from asyncrl.bench.gpu.isolated import MeasurementFailed, isolated
from asyncrl.bench.gpu.settings import EngineSettings
from asyncrl.bench.gpu.subject import device, folder_for, make_model
from asyncrl.core.ids import PolicyVersion
from asyncrl.core.publication import Publication, Shard
from asyncrl.core.recipe.generators import GeneratorsConfig
from asyncrl.core.trajectory import Sampling

if TYPE_CHECKING:
    from asyncrl.generators.completion import Completion
    from asyncrl.weights.shm.shared_tensors import SharedMemory

NEEDED = ("vllm", "ray", "mlflow", "hydra")
"""What a machine must have beside the learner's packages."""
COMPARED = 8
"""How many completions' log-probabilities are compared."""
VERSIONS = 4
"""How many publications are loaded. The first finds files and memory that nobody has touched yet."""


class EngineOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What one engine did.

    Attributes:
        dtype: of its weights.
        start_seconds: until it was warm.
        tokens_per_s: sampled tokens, all requests together.
        first_pause_seconds: for which the first publication paused the engine, which ran nothing then.
        load_seconds, pause_seconds: of each later publication, while requests ran; the pause is the part of it in which
            nothing was sampled.
        fingerprints_equal: whether the engine acknowledged what was published, each time.
        versions_within_a_request: the most policy versions that sampled one completion.
        logprob_gap_mean, logprob_gap_max: absolute differences, in nats, to Hugging Face's model in the same data type.
        published_gap_mean, published_gap_max: the same after the last publication, to a model with the weights of that.
    """

    dtype: str
    start_seconds: float
    tokens_per_s: float
    first_pause_seconds: float
    load_seconds: tuple[float, ...]
    pause_seconds: tuple[float, ...]
    fingerprints_equal: bool
    versions_within_a_request: int
    logprob_gap_mean: float
    logprob_gap_max: float
    published_gap_mean: float
    published_gap_max: float


class RunOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What a short quickstart did: its exit code, its seconds in all, and the summary that it wrote."""

    exit_code: int
    seconds: float
    summary: dict[str, object]


class EngineResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured; None where it could not be, and ``missing`` says why."""

    engine: EngineOutcome | None
    run: RunOutcome | None
    missing: tuple[str, ...]


def measure(settings: EngineSettings, seconds: float) -> EngineResult:
    """Measure the engine in a process of its own, then run the quickstart as a user would."""
    missing = [f"{name}: not installed" for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        return EngineResult(engine=None, run=None, missing=tuple(missing))
    ends, engine, run = time.monotonic() + seconds, None, None
    try:
        with folder_for(settings.model) as folder:
            isolated(make_model, folder, settings.model, seconds=seconds)
            engine = isolated(one_engine, folder, settings, seconds=ends - time.monotonic())
    except MeasurementFailed as failure:
        missing.append(f"engine: {failure}")
    try:
        run = _quickstart(settings.steps, max(1.0, ends - time.monotonic()))
    except MeasurementFailed as failure:
        missing.append(f"quickstart: {failure}")
    if not torch.cuda.is_available():
        missing.append("a GPU: the figures are of a CPU and mean nothing")
    return EngineResult(engine=engine, run=run, missing=tuple(missing))


def one_engine(folder: Path, settings: EngineSettings) -> EngineOutcome:
    """Start an engine in this process and measure it."""
    return asyncio.run(_one_engine(folder, settings))


async def _one_engine(folder: Path, settings: EngineSettings) -> EngineOutcome:
    from asyncrl.generators.vllm.engine import VllmEngine
    from asyncrl.generators.vllm.engine_arguments import EngineSettings
    from asyncrl.weights.publication_merge import merge
    from asyncrl.weights.shm.shared_tensors import SharedMemory

    dtype: Literal["bfloat16", "float32"] = "bfloat16" if torch.cuda.is_available() else "float32"
    config = GeneratorsConfig(
        count=1, max_running=settings.requests, dtype=dtype, kv_cache_mb=64, gpu_memory_share=settings.gpu_memory_share
    )
    began = time.perf_counter()
    most = 2 * (settings.prompt_tokens + settings.new_tokens)
    engine = await VllmEngine.start(EngineSettings(config, str(folder), most), name="the engine", start_s=600, answer_s=120)
    started = time.perf_counter() - began
    random = np.random.default_rng(0)
    prompts = random.integers(1, settings.model.vocabulary, (settings.requests, settings.prompt_tokens)).tolist()

    async def all_requests() -> list["Completion"]:
        # One token of the vocabulary ends a request: that is rare, and only what was sampled is counted.
        asked = [
            engine.generate(
                prompt,
                max_tokens=settings.new_tokens,
                sampling=Sampling(temperature=1.0),
                stop_token_ids=(0,),
            )
            for prompt in prompts
        ]
        return list(await asyncio.gather(*asked))

    try:
        await all_requests()
        began = time.perf_counter()
        completions = await all_requests()
        took = time.perf_counter() - began
        gaps = await asyncio.to_thread(_gaps, folder, dtype, 0, prompts[:COMPARED], completions[:COMPARED])
        acknowledged, loads, pauses, spans = [], [], [], 0
        # The memory of `folder_for` is that which a run publishes through, where there is room for it.
        with tempfile.TemporaryDirectory(dir=folder.parent) as files, closing(SharedMemory("bench", 0, files)) as transport:
            for version in range(1, VERSIONS + 1):
                publication = merge([await asyncio.to_thread(_publish, transport, folder, version)])
                running = asyncio.ensure_future(all_requests()) if version > 1 else None
                await asyncio.sleep(took / 4 if running else 0)
                began = time.perf_counter()
                acknowledged.append(await engine.load_publication(publication) == publication.fingerprint)
                loads.append(time.perf_counter() - began)
                pauses.append(engine.use().last_pause_seconds)
                if running:
                    spans = max(spans, *(len(completion.spans) for completion in await running))
            published = (await all_requests())[:COMPARED]
        published_gaps = await asyncio.to_thread(_gaps, folder, dtype, VERSIONS, prompts[:COMPARED], published)
    finally:
        await engine.close()
    return EngineOutcome(
        dtype=dtype,
        start_seconds=started,
        tokens_per_s=sum(len(completion.token_ids) for completion in completions) / took,
        first_pause_seconds=pauses[0],
        load_seconds=tuple(loads[1:]),
        pause_seconds=tuple(pauses[1:]),
        fingerprints_equal=all(acknowledged),
        versions_within_a_request=spans,
        logprob_gap_mean=float(gaps.mean()),
        logprob_gap_max=float(gaps.max()),
        published_gap_mean=float(published_gaps.mean()),
        published_gap_max=float(published_gaps.max()),
    )


def _publish(transport: "SharedMemory", folder: Path, version: int) -> Publication:
    """Publish the folder's weights, each larger than in the version before."""
    from safetensors import safe_open

    shards = []
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118
                tensor = tensors.get_tensor(name).to(device()) * _growth(version)
                shards.append(Shard(name, tuple(tensor.shape), (0,) * tensor.dim(), tensor))
    return transport.write(PolicyVersion(version), shards)


def _growth(version: int) -> float:
    """How much larger the weights of a version are than those of version 0, so that their log-probabilities differ much."""
    return 1 + version / 16


@torch.no_grad()
def _gaps(folder: Path, dtype: str, version: int, prompts: list[list[int]], completions: "list[Completion]") -> np.ndarray:
    """Absolute differences of log-probabilities between the engine and Hugging Face's model with the weights of a version."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype)).to(device())
    for parameter in model.parameters():
        parameter.copy_(parameter.to(torch.bfloat16) * _growth(version))  # rounded as what was published
    gaps = []
    for prompt, completion in zip(prompts, completions, strict=True):
        sampled = torch.from_numpy(completion.token_ids.astype(np.int64)).to(device())
        tokens = torch.cat([torch.tensor(prompt, device=device()), sampled]).unsqueeze(0)
        logits = model(input_ids=tokens).logits[0, len(prompt) - 1 : -1].float()
        logp = torch.log_softmax(logits, -1).gather(1, sampled.unsqueeze(1)).squeeze(1).cpu().numpy()
        gaps.append(np.abs(logp - completion.logprobs))
    return np.concatenate(gaps)


def _quickstart(steps: int, seconds: float) -> RunOutcome:
    """Run the quickstart for a few training steps in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="asyncrl-bench-gpu-run-") as folder:
        command = [sys.executable, "-P", "-m", "asyncrl.cli.main", "launch", "quickstart", f"steps={steps}", f"run_dir={folder}"]
        command += ["tasks.evaluation=8", "batch.groups_per_step=4", "batch.group_size=4", "learner.warmup_steps=0"]
        began = time.perf_counter()
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=seconds, env=os.environ | {"COLUMNS": "160"}, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise MeasurementFailed(f"it had not finished after {seconds:.0f} s") from error
        took = time.perf_counter() - began
        found = list(Path(folder).glob("*/summary.json"))
        if not found:
            last = " ".join((done.stdout + done.stderr).split()[-60:])
            raise MeasurementFailed(f"it ended with exit code {done.returncode} and wrote no summary: {last}")
        return RunOutcome(exit_code=done.returncode, seconds=took, summary=json.loads(found[0].read_text()))
