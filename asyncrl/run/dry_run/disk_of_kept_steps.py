"""What a run keeps of its training steps, so that they can be replayed or trained from again, and what that takes of the disk."""

import numpy as np

from asyncrl.core.measures.units import memory
from asyncrl.core.recipe.advantage import GaeAdvantageConfig
from asyncrl.core.recipe.buffer import AppendOnlyJournalConfig
from asyncrl.core.recipe.environment import AgentEnvironmentConfig
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.routed_experts import RoutedExperts
from asyncrl.core.text import pluralize
from asyncrl.run.models.model_shape import ModelShape

STATE_BYTES = 12
"""Bytes of a checkpoint for each weight that is trained: it and Adam's two moments, in float32."""
TOKEN_BYTES = 9
"""Bytes of an episode's payload for each token."""
TAUGHT_BYTES = 4
"""Bytes more for each sampled token that a teacher has looked at."""


def kept_steps(recipe: Recipe, shape: ModelShape) -> str:
    """Say which steps can be replayed once the run has come to its end, and how large the files are that this takes, at most."""
    journal, every, keep = recipe.buffer.journal, recipe.checkpoint.every, recipe.checkpoint.keep
    if not isinstance(journal, AppendOnlyJournalConfig):
        return "nothing: there is no journal"
    lora = recipe.learner.lora
    trained = shape.parameters if lora is None else shape.adapter_parameters(lora)
    if isinstance(recipe.algorithm.advantage, GaeAdvantageConfig):
        trained += shape.parameters  # the critic trains all its weights, whatever the policy trains
    saved, replayed = _saved(recipe), _replayed(recipe, journal)
    # Before the newest checkpoint is written, the batches since the oldest of the others are there as well.
    batches = min(recipe.steps, max(journal.keep, keep * every))
    members = recipe.environment.by_member.values()
    streams = max(each.max_trajectories if isinstance(each, AgentEnvironmentConfig) else 1 for each in members)
    tokens = recipe.batch.groups_per_step * recipe.batch.group_size * streams * recipe.model.max_context
    of_step = tokens * _token_bytes(recipe, shape)
    checkpoints = f"{pluralize(len(saved), 'checkpoint')} of about {memory(trained * STATE_BYTES)}"
    which = "all" if replayed == recipe.steps else "the last"
    steps = f"{which} {pluralize(replayed, 'training step')}" if replayed else "no training step"
    return (
        f"{steps}: {checkpoints}, and the batches of at most "
        f"{pluralize(batches, 'step')}, which are at most {memory(batches * of_step)} (checkpoint.keep {keep}, "
        f"buffer.journal.keep {journal.keep})"
    )


def how_to_keep_some(recipe: Recipe, journal: AppendOnlyJournalConfig) -> str:
    """Say what would have steps kept, to be replayed; empty where some are."""
    if _replayed(recipe, journal):
        return ""
    checkpoint = recipe.checkpoint
    several = ["checkpoint.keep=2"] if checkpoint.keep == 1 else []
    several += [f"checkpoint.every={recipe.steps // 2}"] if checkpoint.every >= recipe.steps else []
    return f"; set {' '.join(several)}, or buffer.journal.keep={recipe.steps} for all"


def _saved(recipe: Recipe) -> list[int]:
    """The training steps whose checkpoints are there in the end."""
    every = recipe.checkpoint.every
    return [*range(every, recipe.steps, every), recipe.steps][-recipe.checkpoint.keep :]


def _replayed(recipe: Recipe, journal: AppendOnlyJournalConfig) -> int:
    """How many of the last training steps can be replayed."""
    # With the batches of all steps, those before the oldest checkpoint begin with the model that the run began with.
    return recipe.steps if journal.keep >= recipe.steps else recipe.steps - _saved(recipe)[0]


def _token_bytes(recipe: Recipe, shape: ModelShape) -> int:
    """The most bytes of an episode's payload for each token."""
    taught = TAUGHT_BYTES if recipe.algorithm.teacher is not None else 0
    mixture, routed = shape.mixture, 0
    if recipe.learner.experts.replay:
        nothing = np.empty(0, np.uint8)
        routed = RoutedExperts(mixture.experts, sum(mixture.layers), mixture.per_token, nothing).token_bytes
    return TOKEN_BYTES + taught + routed
