"""Replay buffers of a recipe: new, restored from a snapshot, recovered from a journal."""

from asyncrl.buffers.journal.recovery import recover
from asyncrl.buffers.journal.unchangeable_keys import Identity
from asyncrl.buffers.replay_buffer import ReplayBuffer


def buffer_of(recipe, tasks):
    return ReplayBuffer(recipe.batch, recipe.buffer, tasks, steps=recipe.steps, seed=recipe.seed)


def restored(recipe, tasks, data):
    buffer = buffer_of(recipe, tasks)
    buffer.restore(data)
    return buffer


def recovered(recipe, tasks, folder, stores, wait_s=0.0, too_long=None):
    buffer = buffer_of(recipe, tasks)
    identity = Identity.of(recipe, tasks)
    return recover(buffer, identity, recipe.buffer.journal, folder, stores, too_long=too_long, wait_s=wait_s)
