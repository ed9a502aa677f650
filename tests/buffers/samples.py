"""Buffers, tickets' answers and streams of tasks, made for tests."""

import itertools

from made_buffers import buffer_of
from played_episodes import record

from asyncrl.buffers.tasks.task_stream import TaskSource, TaskStream
from asyncrl.core.episode_records import PayloadRef
from asyncrl.core.recipe.buffer import BufferConfig
from asyncrl.core.recipe.environment import ClassEnvironmentConfig
from asyncrl.core.recipe.schema import BatchConfig, ModelConfig, Recipe
from asyncrl.core.task import Task

_offsets = itertools.count(0, 100)


def make_recipe(steps=100, groups_per_step=2, group_size=2, min_group=None, seed=0, **buffer):
    return Recipe(
        name="test",
        steps=steps,
        model=ModelConfig(path="nowhere"),
        environment=ClassEnvironmentConfig(name="none"),
        batch=BatchConfig(groups_per_step=groups_per_step, group_size=group_size, min_group=min_group),
        buffer=BufferConfig(**buffer),
        seed=seed,
    )


def make_tasks(tasks=50, source="source"):
    return TaskStream([TaskSource(source, [Task(id=f"task-{i}", prompt="") for i in range(tasks)])], seed=1)


def make_buffer(**recipe):
    return buffer_of(make_recipe(**recipe), make_tasks())


def sample(ticket, index, versions=(0,), reward=0.0, tokens=2, size=100, prompt=3):
    """An episode of ``ticket`` that each of ``versions`` sampled ``tokens`` of; its payload is like no other's."""
    return record(
        group_id=ticket.group_id,
        sample_index=index,
        length=prompt + tokens * len(versions),
        sampled=tuple((version, tokens) for version in versions),
        reward=reward,
        payload=PayloadRef(0, "segment", next(_offsets), size, 0),
        turn_rewards=(reward,),
        rewards=(reward, 0.5),
    )


def finish(buffer, ticket, versions=(0,), now=0.0, **options):
    """Hand in all episodes of a ticket."""
    buffer.commit([sample(ticket, index, versions, **options) for index in ticket.samples], now)
