"""An engine over two workers samples with what ranks in any layout published: a part of the table of ``publication_proof``."""

import asyncio
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from learner_samples import make_model
from publication_proof import LAYOUTS, MODELS, VERSIONS, gaps, published, started

from asyncrl.core.files.owned_memory import BEGINNING


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
