"""The model, learner and rows that the benchmarks of optimizer steps share."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import torch

from asyncrl.core.batch import Batch, BatchEpisode, SampleName
from asyncrl.core.episode import Episode
from asyncrl.core.episode_records import EpisodeRecord, PayloadRef
from asyncrl.core.ids import NOT_SAMPLED, GroupId, PolicyVersion, TaskId
from asyncrl.core.recipe.algorithm import AlgorithmConfig
from asyncrl.core.recipe.correction import CorrectionConfig
from asyncrl.core.recipe.learner import LearnerConfig
from asyncrl.core.recipe.loss import PpoClipLossConfig
from asyncrl.core.recipe.schema import DeadlinesConfig
from asyncrl.core.trajectory import Sampling as Sampled
from asyncrl.core.trajectory import StopReason, Trajectory, Turn, VersionSpan

if TYPE_CHECKING:
    from asyncrl.learners.learner import Learner

VOCABULARY, LONGEST = 4096, 2048
GROUP_SIZE = 8

Episodes = dict[SampleName, Episode]


def make_model(folder: Path, layers: int = 4) -> None:
    """Write a model with random weights to ``folder``; the weights are the same every time."""
    from transformers import Qwen3Config, Qwen3ForCausalLM
    from transformers.utils.logging import disable_progress_bar

    disable_progress_bar()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=layers,
        num_attention_heads=8,
        num_key_value_heads=8,
        head_dim=32,
        max_position_embeddings=LONGEST,
        tie_word_embeddings=True,
    )
    Qwen3ForCausalLM(config).save_pretrained(folder)


def make_learner(folder: Path, micro_batch_tokens: int, learning_rate: float) -> "Learner":
    """Make a learner of one rank with the model in ``folder``."""
    from asyncrl.learners.learner import Learner
    from asyncrl.learners.rank import FileMeeting, RankSpec

    return Learner(
        AlgorithmConfig(loss=PpoClipLossConfig(), correction=CorrectionConfig(anchor="proximal_recomputed", weight="token")),
        LearnerConfig(lr=learning_rate, micro_batch_tokens=micro_batch_tokens),
        DeadlinesConfig(),
        temperature=1.0,
        steps=1,
        seed=0,
        model_path=folder,
        rank=RankSpec(rank=0, meeting=FileMeeting.make(folder / "meeting")),
    )


def make_batch(episodes: Iterable[Episode]) -> tuple[Batch, Episodes]:
    """Make a batch of these episodes; return it with the episodes by group and sample index."""
    version, nowhere = PolicyVersion(0), PayloadRef(shard=0, segment="", offset=0, size=0, checksum=0)
    records, by_name = [], {}
    for episode in episodes:
        record = msgspec.structs.replace(EpisodeRecord.of(episode, nowhere), committed_version=version)
        records.append(BatchEpisode.around(record, episode.task_id, "", 1.0))
        by_name[episode.group_id, episode.sample_index] = episode
    return Batch(version, version, tuple(records)), by_name


def make_episode(
    group: GroupId, sample: int, prompt: np.ndarray, length: int, random: np.random.Generator, vocabulary: int = VOCABULARY
) -> Episode:
    """Make an episode of one trajectory of ``length`` tokens: ``prompt``, then random tokens below ``vocabulary``.

    The untrained model gives every token about the same probability; the behaviour log-probabilities differ from that by noise.
    """
    mask = np.arange(length) >= len(prompt)
    behaviour = -math.log(vocabulary) + random.normal(0, 0.3, length)
    trajectory = Trajectory(
        token_ids=np.concatenate([prompt, random.integers(0, vocabulary, length - len(prompt))]).astype(np.int32),
        logprobs=np.where(mask, behaviour, 0).astype(np.float32),
        loss_mask=mask,
        version_spans=(VersionSpan(0, len(prompt), NOT_SAMPLED), VersionSpan(len(prompt), length, PolicyVersion(0))),
        turns=(Turn(len(prompt), length, 0.0),),
    )
    return Episode(
        task_id=TaskId(str(group)),
        group_id=group,
        sample_index=sample,
        attempt=0,
        trajectories=(trajectory,),
        reward=float(sample % 2),
        stop_reason=StopReason.ENVIRONMENT_DONE,
        sampling=Sampled(temperature=1.0, top_p=1.0, top_k=0),
    )
