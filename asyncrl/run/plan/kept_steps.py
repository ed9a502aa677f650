"""What a run keeps of its training steps, so that they can be replayed or trained from again, and what that takes of the disk."""

from asyncrl.core.measures.units import memory
from asyncrl.core.recipe.buffer import AppendOnlyJournalConfig
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.text import pluralize
from asyncrl.run.models.model_shape import ModelShape

STATE_BYTES = 12
"""Bytes of a checkpoint for each weight that is trained: it and Adam's two moments, in float32."""
TOKEN_BYTES = 9
"""Bytes of an episode's payload for each token."""


def kept_steps(recipe: Recipe, shape: ModelShape) -> str:
    """Say which steps can be replayed once the run has come to its end, and how large the files are that this takes, at most."""
    journal, every, keep = recipe.buffer.journal, recipe.checkpoint.every, recipe.checkpoint.keep
    if not isinstance(journal, AppendOnlyJournalConfig):
        return "nothing: there is no journal"
    lora = recipe.learner.lora
    trained = shape.parameters if lora is None else shape.adapter_parameters(lora)
    saved = min(keep, -(-recipe.steps // every))
    since = min(recipe.steps, (keep - 1) * every + (recipe.steps % every or every)) if saved == keep else recipe.steps
    replayed = recipe.steps if max(since, journal.keep) >= recipe.steps else since
    # Before the newest checkpoint is written, the batches since the oldest of the others are there as well.
    batches = min(recipe.steps, max(journal.keep, keep * every))
    of_step = recipe.batch.groups_per_step * recipe.batch.group_size * recipe.model.max_context * TOKEN_BYTES
    checkpoints = f"{pluralize(saved, 'checkpoint')} of about {memory(trained * STATE_BYTES)}"
    return (
        f"the last {pluralize(replayed, 'step')} of the run: {checkpoints}, and the batches of at most "
        f"{pluralize(batches, 'step')}, which are at most {memory(batches * of_step)} (checkpoint.keep {keep}, "
        f"buffer.journal.keep {journal.keep})"
    )
