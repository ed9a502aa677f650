"""The processes that judge finished episodes: the reward model, and the engines of a teacher.

What always holds: each of them is there before a generator that asks it, and is shared by all generators.
"""

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from asyncrl.core.recipe.reward import ModelRewardConfig
from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.host.ray_calls import ask
from asyncrl.run.nodes.model_folder import ModelFolder
from asyncrl.run.nodes.placed_processes import Places
from asyncrl.run.nodes.process_kinds import REWARD_MODEL, TEACHER, teacher_engines
from asyncrl.run.nodes.remote_files import model_for_all_nodes
from asyncrl.run.reward.reward_model_actor import RemoteRewardModel
from asyncrl.run.teacher.teacher_actor import RemoteTeacherEngine


class Judges(msgspec.Struct, frozen=True):
    """The judges of a run, as generators are given them.

    Attributes:
        reward_model: the actor of the reward model; None without one.
        teachers: the actors of the teacher's engines; none without a teacher, or if it is on a server.
    """

    reward_model: Any | None = None
    teachers: tuple[Any, ...] = ()

    @classmethod
    def make(cls, recipe: Recipe, model: ModelFolder, folder: RunFolder, places: Places) -> "Judges":
        """Make the processes, each in its place; they are not started yet.

        Args:
            model: the policy's folder.
        """
        reward, reward_model = recipe.reward, None
        if isinstance(reward, ModelRewardConfig):
            place = places.take(REWARD_MODEL, REWARD_MODEL)
            reward_model = RemoteRewardModel.options(**place.options).remote(
                reward,
                model_for_all_nodes(Path(reward.path)),
                model,
                places.on_node[place.node] - 1,
                folder.logs / "reward-model.log",
            )
        teacher, pool, teachers = recipe.algorithm.teacher, teacher_engines(recipe), []
        if teacher is not None and pool is not None:
            files = model_for_all_nodes(Path(teacher.name))
            for number in range(pool.count):
                place = places.take(f"{TEACHER}-{number}", TEACHER)
                here = places.on_node_of([TEACHER, *recipe.generators.by_pool])[place.node]
                actor = RemoteTeacherEngine.options(max_concurrency=1000, **place.options)
                log = folder.logs / f"{TEACHER}-{number}.log"
                teachers.append(actor.remote(recipe, teacher, files, f"{TEACHER}-{number}", here, log))
        return cls(reward_model, tuple(teachers))

    @property
    def by_name(self) -> dict[str, Any]:
        """The actors by the names that people read."""
        scorers = {} if self.reward_model is None else {REWARD_MODEL: self.reward_model}
        return scorers | {f"{TEACHER}-{number}": actor for number, actor in enumerate(self.teachers)}

    async def start(self, seconds: float, remedy: str, up: Callable[[str], None]) -> None:
        """Start them side by side; ``up`` is called with the name of each that is up."""

        async def start(name: str, actor: Any) -> None:
            await ask(actor.start.remote(), of=f"{name} to start", by="the driver", seconds=seconds, remedy=remedy)
            up(name)

        async with asyncio.TaskGroup() as starting:
            for name, actor in self.by_name.items():
                starting.create_task(start(name, actor))

    def on(self, places: Places, node: str) -> Iterator[str]:
        """Name those on a node, for people."""
        for part in (REWARD_MODEL, TEACHER):
            if places.on_node_of({part})[node]:
                yield f"the {part}"


NO_JUDGES = Judges()
"""Nothing judges episodes; of generators that only evaluate."""
