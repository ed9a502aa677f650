"""The random models, rows and learners that the parts of ``asyncrl bench gpu`` share."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import msgspec
import numpy as np
import torch

from asyncrl.bench.gpu.settings import ModelSize
from asyncrl.bench.learner.learner_subject import GROUP_SIZE, Episodes, make_batch, make_episode
from asyncrl.core.batch import Batch
from asyncrl.core.errors import RecipeError
from asyncrl.core.files.memory_files import memory_file_system
from asyncrl.core.ids import GroupId, PolicyVersion
from asyncrl.core.process.long_import import long_import
from asyncrl.core.recipe.algorithm import AlgorithmConfig
from asyncrl.core.recipe.correction import CorrectionConfig
from asyncrl.core.recipe.learner import LearnerConfig
from asyncrl.core.recipe.loss import PpoClipLossConfig
from asyncrl.core.recipe.schema import DeadlinesConfig
from asyncrl.envs.hosting.workspaces import Workspaces, default_root

if TYPE_CHECKING:
    from asyncrl.learners.learner import Learner
    from asyncrl.learners.step_report import StepReport

LEARNING_RATE = 1e-6
LONGEST_POSITION = 40_960
_NAME = "bench-gpu"
FOLDERS = "ASYNCRL_BENCH_GPU_FOLDERS"
"""The environment variable that names a folder in memory and one on disk to the processes of a benchmark."""


def device() -> str:
    """The device that is measured."""
    return "cuda" if torch.cuda.is_available() else "cpu"


def synchronize() -> None:
    """Wait until the GPU has done everything, if there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


@contextmanager
def folder_for(size: ModelSize) -> Iterator[Path]:
    """Provide a folder that has room for the model's weights, in memory if possible, and remove it at the end.

    It lies in the folder of :func:`all_folders`, which removes it if the process is killed.
    """
    needed = 6 * size.parameters
    memory, disk = (Path(each) for each in os.environ[FOLDERS].split(os.pathsep))
    parent = memory if shutil.disk_usage(memory).free > needed else disk
    with tempfile.TemporaryDirectory(dir=parent) as folder:
        yield Path(folder)


@contextmanager
def all_folders() -> Iterator[None]:
    """Provide a folder in memory and one on disk to the processes that are started meanwhile, and remove both at the end.

    Those of a benchmark that was killed, which may hold tens of GB, are removed by the next one.
    """
    root = default_root()
    with (
        closing(Workspaces(_NAME, memory_file_system() / root.name)) as memory,
        closing(Workspaces(_NAME, root)) as disk,
        mock.patch.dict(os.environ, {FOLDERS: os.pathsep.join((str(memory.folder), str(disk.folder)))}),
    ):
        yield


def import_learner() -> None:
    """Import what makes models and trains them, for the processes that are forked from this one, on a host without a GPU.

    What cannot be imported is left to the parts that need it: they say what is wrong. Environment variables stay as they are.
    """
    with suppress(ImportError, RecipeError), long_import(), mock.patch.dict(os.environ):
        from transformers import Qwen3ForCausalLM, Qwen3MoeForCausalLM  # noqa: F401

        from asyncrl.learners.megatron.cpu import compat

        compat.install()
        from asyncrl.learners.megatron import trainer  # noqa: F401


def make_model(folder: Path, size: ModelSize, experts: int = 0) -> None:
    """Write a Qwen3 model of this size with random weights in bfloat16, the same every time on the same device.

    Args:
        experts: experts of each layer, of which each token goes to two; 0 for a dense model.
    """
    from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    options: dict[str, Any] = {}
    if experts:
        options = {
            "num_experts": experts,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": size.feed_forward,
            "norm_topk_prob": True,
        }
    config = (Qwen3MoeConfig if experts else Qwen3Config)(
        vocab_size=size.vocabulary,
        hidden_size=size.hidden,
        intermediate_size=size.feed_forward,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        num_key_value_heads=size.key_value_heads,
        head_dim=size.head_dim,
        max_position_embeddings=LONGEST_POSITION,
        tie_word_embeddings=size.tied,
        dtype="bfloat16",
        **options,
    )
    torch.manual_seed(0)
    with torch.device(device()):
        (Qwen3MoeForCausalLM if experts else Qwen3ForCausalLM)(config).to(torch.bfloat16).save_pretrained(folder)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def rows_of(lengths: Sequence[int], vocabulary: int, prompt: int | None = None) -> tuple[Batch, Episodes]:
    """Make a batch of rows of these lengths.

    Args:
        prompt: tokens of the prompt that the rows of a group share; None for prompts of their own of a quarter of the row.
    """
    random = np.random.default_rng(0)
    shared = [random.integers(0, vocabulary, prompt or 0) for _ in range(-(-len(lengths) // GROUP_SIZE))]
    return make_batch(
        make_episode(
            GroupId(number // GROUP_SIZE),
            number % GROUP_SIZE,
            random.integers(0, vocabulary, length // 4) if prompt is None else shared[number // GROUP_SIZE],
            length,
            random,
            vocabulary,
        )
        for number, length in enumerate(lengths)
    )


def make_learner(
    folder: Path, micro_batch_tokens: int, algorithm: Mapping[str, object] | None = None, /, **options: object
) -> "Learner":
    """Make a learner of one rank with the model in ``folder``; ``algorithm`` and ``options`` are keys of those sections of a
    recipe."""
    from asyncrl.learners.learner import Learner
    from asyncrl.learners.rank import FileMeeting, RankSpec

    mathematics = AlgorithmConfig(
        loss=PpoClipLossConfig(), correction=CorrectionConfig(anchor="proximal_recomputed", weight="token")
    )
    meeting = Path(tempfile.mkdtemp(dir=folder)) / "meeting"
    return Learner(
        msgspec.structs.replace(mathematics, **(algorithm or {})),
        msgspec.structs.replace(LearnerConfig(lr=LEARNING_RATE, micro_batch_tokens=micro_batch_tokens), **options),
        DeadlinesConfig(),
        temperature=1.0,
        steps=1000,
        seed=0,
        model_path=folder,
        rank=RankSpec(rank=0, meeting=FileMeeting.make(meeting)),
    )


def at_version(batch: Batch, version: int) -> Batch:
    """Return the batch as one that trains another version; what it holds stays the same."""
    return msgspec.structs.replace(batch, version=PolicyVersion(version))


def values_of(report: "StepReport") -> dict[str, float]:
    """The readings of a step by name."""
    return {reading.metric.name: reading.value for reading in report.readings}
