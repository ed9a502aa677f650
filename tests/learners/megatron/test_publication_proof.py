"""An engine over two workers samples with what ranks in any layout published: a part of the table of ``publication_proof``."""

import asyncio
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
from learner_samples import make_model
from publication_proof import LAYOUTS, MODELS, ROWS, VERSIONS, gaps, published, started

from asyncrl.core.files.owned_memory import BEGINNING
from asyncrl.core.trajectory import Sampling


def mapped_queues() -> list[str]:
    """The queues in shared memory that the processes of the engine have mapped, as the kernel tells of them."""
    maps = []
    for process in psutil.Process().children(recursive=True):
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended
            maps.append(Path(f"/proc/{process.pid}/maps").read_text())
    return [line for each in maps for line in each.splitlines() if f"/{BEGINNING}" in line]


@pytest.mark.timeout(600)
def test_an_engine_over_two_workers_has_the_log_probabilities_of_the_ranks(tmp_path):
    """After each of five publications by each of two layouts, in float32, to its rounding."""
    architecture, overrides = MODELS["qwen3"]
    folder = make_model(tmp_path / "model", architecture, **overrides)
    versions = [
        each
        for number, layout in enumerate(("tp2-pp2", "pp2-vpp2"))
        for each in published(folder, LAYOUTS[layout], 1 + number * VERSIONS, tmp_path)
    ]

    async def of_engine():
        engine = await started(folder, 2, "float32")
        try:
            queues = mapped_queues()
            assert len(queues) > 2, "the engine's process and two workers speak through them"
            assert all(each.endswith("(deleted)") for each in queues), "a process that is killed would leave the others"
            return await gaps(engine, versions)
        finally:
            await engine.close()

    found = asyncio.run(of_engine())
    assert len(found) == 2 * VERSIONS
    assert max(worst for _, worst in found) < 1e-4
    assert len({each.publication.fingerprint for each in versions}) == 2 * VERSIONS


@pytest.mark.timeout(600)
def test_latent_attention_is_that_of_the_ranks_at_once_and_token_by_token(tmp_path):
    """An engine computes a prompt with the weights that are published, and each token after it with products of them."""
    architecture, overrides = MODELS["deepseek-v3"]
    folder = make_model(tmp_path / "model", architecture, **overrides)
    versions = published(folder, LAYOUTS["ep2"], 1, tmp_path)

    async def of_engine():
        engine = await started(folder, 2, "float32")
        try:
            at_once = await gaps(engine, versions)
            with engine.episode() as sampler:
                turns = [await sampler.generate(r, max_tokens=20, sampling=Sampling(1.0), stop_token_ids=(0,)) for r in ROWS]
            scored = await engine.score([row + turn.token_ids.tolist() for row, turn in zip(ROWS, turns, strict=True)])
            pairs = zip(scored, turns, strict=True)
            return at_once, [np.abs(s.logprobs[-len(t.token_ids) :] - t.logprobs).max() for s, t in pairs]
        finally:
            await engine.close()

    at_once, token_by_token = asyncio.run(of_engine())
    assert len(at_once) == VERSIONS
    assert max(worst for _, worst in at_once) < 1e-4
    assert max(token_by_token) < 1e-4
