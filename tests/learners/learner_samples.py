"""Small models, batches and recipes that the learner's tests share."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from loss_samples import decoupled_ppo
from transformers import (
    AutoModelForCausalLM,
    DeepseekV3Config,
    DeepseekV3ForCausalLM,
    Glm4MoeConfig,
    Glm4MoeForCausalLM,
    GptOssConfig,
    GptOssForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    MixtralConfig,
    MixtralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen2MoeConfig,
    Qwen2MoeForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from asyncrl.core.batch import Batch, BatchEpisode, BatchRow, RowName, SampleName
from asyncrl.core.episode import Episode
from asyncrl.core.episode_records import EpisodeRecord, PayloadRef
from asyncrl.core.ids import NOT_SAMPLED, GroupId, PolicyVersion, TaskId
from asyncrl.core.recipe.environment import ClassEnvironmentConfig
from asyncrl.core.recipe.learner import LearnerConfig
from asyncrl.core.recipe.schema import ModelConfig, Recipe, SamplingConfig
from asyncrl.core.trajectory import Sampling as Sampled
from asyncrl.core.trajectory import StartReason, StopReason, Trajectory, Turn, VersionSpan
from asyncrl.learners.batches.micro_batch import MicroBatch, pack
from asyncrl.learners.batches.prefixes import families

VOCABULARY = 96
NO_PAYLOAD = PayloadRef(shard=0, segment="", offset=0, size=0, checksum=0)
"""The learner is handed its rows; where they lay is not its concern."""
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
"""As a model card tells users to write it, for contexts longer than those of the training."""

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24, "norm_topk_prob": True}


GLM = {
    "head_dim": 16,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.5,
    "attention_bias": True,
    "use_qk_norm": True,
    "num_mtp_layers": 0,
}


DEEPSEEK = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 16,
    "n_routed_experts": 6,
    "num_experts_per_tok": 3,
    "n_group": 3,
    "topk_group": 2,
    "moe_intermediate_size": 24,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 2.5,
    "topk_method": "noaux_tc",
    "scoring_func": "sigmoid",
    "num_mtp_layers": 0,
}
"""A group has two experts, and a token's three are from two groups of three: one of these is left out."""


OSS_ROPE = YARN_ROPE | {"rope_theta": 150000.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
OSS = {
    "head_dim": 16,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "sliding_window": 8,
    "rope_parameters": OSS_ROPE,
}
"""Rows are longer than the window, and than the contexts of the training."""


def make_model(folder: Path, architecture: str = "qwen3", seed: int = 0, **overrides: Any) -> Path:
    """A random model of 4 layers, saved as Hugging Face does."""
    config_class, model_class, special = {
        "qwen2": (Qwen2Config, Qwen2ForCausalLM, {"tie_word_embeddings": False}),
        "qwen3": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 16, "tie_word_embeddings": True}),
        "qwen3_moe": (Qwen3MoeConfig, Qwen3MoeForCausalLM, {"head_dim": 16} | EXPERTS),
        "llama": (LlamaConfig, LlamaForCausalLM, {"rope_parameters": LLAMA3_ROPE}),
        "qwen3_yarn": (Qwen3Config, Qwen3ForCausalLM, {"head_dim": 16, "rope_parameters": YARN_ROPE}),
        "mistral": (MistralConfig, MistralForCausalLM, {"sliding_window": None}),
        "mixtral": (MixtralConfig, MixtralForCausalLM, {"num_local_experts": 4, "num_experts_per_tok": 2}),
        "glm4_moe": (Glm4MoeConfig, Glm4MoeForCausalLM, GLM),
        "deepseek_v3": (DeepseekV3Config, DeepseekV3ForCausalLM, DEEPSEEK),
        "gpt_oss": (GptOssConfig, GptOssForCausalLM, OSS),
        "qwen2_moe": (Qwen2MoeConfig, Qwen2MoeForCausalLM, EXPERTS | {"shared_expert_intermediate_size": 40}),
    }[architecture]
    torch.manual_seed(seed)
    size: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
    }
    model = model_class(config_class(**(size | special | overrides)))
    with torch.no_grad():
        # Norm weights and biases start at ones and zeros, which would hide a mistake in where they go.
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        for name, parameter in model.named_parameters():
            if name.endswith("gate_up_proj_bias"):
                parameter.mul_(60)  # so that gates are clamped
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.add_(0.1 * torch.randn_like(buffer))
    model.save_pretrained(folder)
    return folder


def make_rounded_but_for_its_bias(folder: Path) -> Path:
    """A model in bfloat16 but for the biases by which its routers choose experts, as transformers has those that are published.
    A bfloat16 does not hold what those are."""
    model = AutoModelForCausalLM.from_pretrained(make_model(folder, "glm4_moe")).bfloat16()
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.data = 7.0 + torch.rand(buffer.shape)
    model.save_pretrained(folder)
    return folder


def untimed(readings: dict[str, float]) -> dict[str, float]:
    """The readings but those that are never the same twice, or depend on the layout: on how often tokens are computed that rows
    share."""
    other = ("learner/step_seconds", "learner/tflops_per_rank", "learner/tokens_computed")
    loads = ("experts/least_load", "experts/most_load", "experts/load_entropy")
    return {name: value for name, value in readings.items() if name not in (*other, *loads)}


def tensors_of(model: torch.nn.Module, kind: str = "data") -> dict[str, np.ndarray]:
    """Parameters, or their gradients (``grad``), in float64 under the names they have in the folder: each expert's apart."""
    found = {}
    of_mixtral = isinstance(model, MixtralForCausalLM)
    for name, parameter in model.named_parameters():
        values = getattr(parameter, kind).double().numpy()
        if of_mixtral:
            name = name.replace(".mlp.", ".block_sparse_moe.")
        place, _, projection = name.rpartition(".")
        if not place.endswith(".experts"):
            found[name] = values
            continue
        for number, expert in enumerate(values):
            if isinstance(model, GptOssForCausalLM):
                found[f"{place}.{number}.{projection}"] = expert
                continue
            parts = np.split(expert, 2) if projection == "gate_up_proj" else [expert]
            names = ["gate_proj", "up_proj"] if projection == "gate_up_proj" else [projection]
            if of_mixtral:
                names = ["w1", "w3"] if projection == "gate_up_proj" else ["w2"]
            found |= {f"{place}.{number}.{part_name}.weight": part for part_name, part in zip(names, parts, strict=True)}
    return found


def make_recipe(folder: Path, *, tensor: int = 1, pipeline: int = 1, data: int = 1, **learner: Any) -> Recipe:
    options = {"lr": 1e-2, "micro_batch_tokens": 96} | learner
    return Recipe(
        name="test",
        steps=10,
        model=ModelConfig(path=str(folder)),
        environment=ClassEnvironmentConfig(name="calculator"),
        sampling=SamplingConfig(temperature=0.8),
        learner=LearnerConfig(tensor_parallel=tensor, pipeline_parallel=pipeline, data_parallel=data, **options),
        algorithm=decoupled_ppo(),
    )


def make_episode(
    group: int,
    sample: int,
    prompt: int,
    completion: int,
    versions: tuple[int, ...],
    reward: float,
    temperature: float = 0.8,
    alike: int = 0,
) -> Episode:
    """A prompt, a sampled turn, two tokens of a tool and another sampled turn; ``versions`` sampled equal parts of each turn.

    The first ``alike`` tokens are those of every row of the group.
    """
    random = np.random.default_rng(1000 * group + sample)
    length = prompt + 2 * completion + 2
    mask = np.zeros(length, bool)
    spans: list[VersionSpan] = [VersionSpan(0, prompt, NOT_SAMPLED)]
    turns = []
    for start in (prompt, prompt + completion + 2):
        mask[start : start + completion] = True
        turns.append(Turn(start, start + completion, 0.0))
        cuts = np.linspace(start, start + completion, len(versions) + 1).astype(int).tolist()
        spans += [VersionSpan(a, b, PolicyVersion(v)) for a, b, v in zip(cuts, cuts[1:], versions, strict=False) if b > a]
        if start == prompt:
            spans.append(VersionSpan(start + completion, start + completion + 2, NOT_SAMPLED))
    token_ids = random.integers(0, VOCABULARY, length)
    token_ids[:alike] = np.random.default_rng(group).integers(0, VOCABULARY, alike)
    trajectory = Trajectory(
        token_ids=token_ids.astype(np.int32),
        logprobs=np.where(mask, random.uniform(-6, -3, length), 0).astype(np.float32),
        loss_mask=mask,
        version_spans=tuple(spans),
        turns=tuple(turns),
    )
    return Episode(
        task_id=TaskId(f"task-{group}"),
        group_id=GroupId(group),
        sample_index=sample,
        attempt=0,
        trajectories=(trajectory,),
        reward=reward,
        stop_reason=StopReason.ENVIRONMENT_DONE,
        sampling=Sampled(temperature=temperature, top_p=1.0, top_k=0),
    )


def make_several(group: int, sample: int, parts: Sequence[tuple[str, int, int]], reward: float, **fields: Any) -> Episode:
    """An episode of several trajectories, each of a role, a prompt and turns of so many tokens, sampled by version 5 and 4."""
    trajectories = [
        msgspec.structs.replace(
            make_episode(group, 100 * sample + part, prompt, completion, (4, 5), reward).trajectories[0],
            part=part,
            role=role,
            why=StartReason.OTHER_ROLE if part else StartReason.FIRST,
        )
        for part, (role, prompt, completion) in enumerate(parts)
    ]
    made = make_episode(group, sample, 3, 2, (5,), reward)
    return msgspec.structs.replace(made, trajectories=tuple(trajectories), **fields)


def assemble(shards_by_rank):
    """Whole tensors by name; every element covered exactly once."""
    whole = {}
    for name, shape, start, values in (shard for shards in shards_by_rank for shard in shards):
        tensor = whole.setdefault(name, np.full(shape, np.nan, np.float64))
        place = tuple(slice(begin, begin + size) for begin, size in zip(start, values.shape, strict=True))
        assert np.isnan(tensor[place]).all(), f"{name} is covered twice"
        tensor[place] = values
    assert not any(np.isnan(tensor).any() for tensor in whole.values())
    return whole


def make_batch(version: int = 5, oldest: int = 4) -> tuple[Batch, dict[SampleName, Episode]]:
    """Three groups of four rows of 9 to 36 tokens, sampled by versions 3 to 5: those of 3 are too old.

    The rows of the second group have one prompt, and those of the third another.
    """
    random = np.random.default_rng(0)
    episodes = []
    for group, alike in enumerate((0, 9, 8)):
        for sample in range(4):
            prompt, completion = int(random.integers(3, 11)), int(random.integers(2, 13))
            versions, reward = ((3, 4, 5), (5,), (4, 5))[sample % 3], float(random.integers(0, 2))
            episodes.append(make_episode(group, sample, alike or prompt, completion, versions, reward, alike=alike))
    return batch_of(episodes, version, oldest)


def needed(row: Trajectory) -> int:
    """How many tokens of the row anything is predicted from: those before its last sampled token."""
    return int(np.flatnonzero(row.loss_mask)[-1])


def batch_of(episodes: Iterable[Episode], version: int = 5, oldest: int = 4) -> tuple[Batch, dict[SampleName, Episode]]:
    """A batch of these episodes, and the episodes by their names."""
    episodes = list(episodes)
    records = [
        BatchEpisode.around(
            msgspec.structs.replace(EpisodeRecord.of(episode, NO_PAYLOAD), committed_version=PolicyVersion(version)),
            episode.task_id,
            "",
            1.0,
        )
        for episode in episodes
    ]
    names = {(episode.group_id, episode.sample_index): episode for episode in episodes}
    return Batch(PolicyVersion(version), PolicyVersion(oldest), tuple(records)), names


def row_of(episodes: Mapping[SampleName, Episode], row: BatchRow) -> Trajectory:
    """The trajectory that is a row of a batch."""
    return episodes[row.group_id, row.sample_index].trajectories[row.part]


def edited(episode: Episode, **fields: Any) -> Episode:
    """The episode with fields of its only trajectory changed."""
    (trajectory,) = episode.trajectories
    return msgspec.structs.replace(episode, trajectories=(msgspec.structs.replace(trajectory, **fields),))


def changed(batch: Batch, change: Callable[[BatchEpisode], Mapping[str, Any]]) -> Batch:
    """The batch with fields of its episodes changed; ``change`` names them and their new values."""
    return msgspec.structs.replace(
        batch, episodes=tuple(msgspec.structs.replace(episode, **change(episode)) for episode in batch.episodes)
    )


def trajectories_changed(episode: BatchEpisode, **fields: Any) -> dict[str, Any]:
    """What :func:`changed` takes to change all trajectories of an episode."""
    return {"trajectories": tuple(msgspec.structs.replace(each, **fields) for each in episode.trajectories)}


def separate(batch: Batch, episodes: Mapping[SampleName, Episode]) -> tuple[Batch, Mapping[SampleName, Episode]]:
    """The same rows, whose records do not tell what they share: none shares its beginning with another."""
    return changed(batch, lambda each: trajectories_changed(each, prompt_length=0, prompt_checksums=())), episodes


def packed_batch(take: slice = slice(None), **changes: Any) -> MicroBatch:
    """The rows of :func:`make_batch` as one micro-batch."""
    batch, episodes = make_batch()
    records = batch.rows[take]
    packed = pack(
        records,
        [row_of(episodes, record) for record in records],
        [[1.0]] * len(records),
        [1.0] * len(records),
        batch=batch,
        multiple=1,
        families=family_numbers(batch.rows),
    )
    return msgspec.structs.replace(packed, **changes)


def family_numbers(rows: Sequence[BatchRow]) -> dict[RowName, int]:
    """The number of each row's family, by its name."""
    return {rows[row].name: number for number, family in enumerate(families(rows)) for row in family}
