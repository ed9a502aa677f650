"""Loads the tasks that a recipe names, from files or from the environment itself."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from asyncrl.buffers.tasks.curriculum import Curriculum, load_curriculum
from asyncrl.buffers.tasks.hub_datasets import pinned
from asyncrl.buffers.tasks.plain_values import TOO_DEEP, is_too_deep
from asyncrl.buffers.tasks.recorded_tasks import RecordedSource, recorded_stream
from asyncrl.buffers.tasks.task_files import read_sources
from asyncrl.buffers.tasks.task_stream import TaskSource, TaskStream
from asyncrl.core.chat_prompt import why_no_chat
from asyncrl.core.errors import RecipeError
from asyncrl.core.ids import TaskId
from asyncrl.core.plug_ins.plug_in import users_code
from asyncrl.core.recipe.environment import MixedEnvironmentConfig
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.recipe.tasks import FileTasksConfig
from asyncrl.core.task import Task
from asyncrl.core.text import short
from asyncrl.envs.load import load_members
from asyncrl.envs.member import Member
from asyncrl.generators.evaluation import HeldOutTask

_PLAIN = "use texts, 64-bit numbers, booleans, None, and a few levels of lists and dictionaries with text keys"

Split = Literal["train", "evaluation"]


def load_sources(recipe: Recipe, split: Split, make_at_most: int | None = None) -> list[TaskSource]:
    """Read and check the sources of one split. The tasks that an environment makes itself are one source, of at
    most ``make_at_most``; in a mixture, those of each member are one.

    Raises:
        RecipeError: a source cannot be read, or the environment makes no tasks or bad ones.
    """
    if isinstance(recipe.tasks, FileTasksConfig):
        return read_sources(getattr(recipe.tasks, split), f"tasks.{split}", recipe.tasks.on_malformed)
    count = getattr(recipe.tasks, split)
    at_most = min(count, make_at_most or count)
    members = load_members(recipe.environment)
    if not isinstance(recipe.environment, MixedEnvironmentConfig):
        return [TaskSource("generated", _made(members[""], split, at_most, recipe.seed))]
    return [
        TaskSource(
            name,
            [_in_mixture(task, name) for task in _made(member, split, at_most, recipe.seed)],
            recipe.tasks.weights.get(name, 1.0),
        )
        for name, member in members.items()
    ]


def with_pinned_data_sets(recipe: Recipe) -> Recipe:
    """Return a recipe that names data sets of the hub with the commit that they are at now, so that a resume reads the same.

    Raises:
        RecipeError: the hub has no such data set, or cannot be asked.
    """
    if not isinstance(recipe.tasks, FileTasksConfig):
        return recipe
    pinned_files = {
        split: tuple(
            msgspec.structs.replace(file, path=pinned(file.path, f"tasks.{split}[{number}].path"))
            for number, file in enumerate(getattr(recipe.tasks, split))
        )
        for split in ("train", "evaluation")
    }
    return msgspec.structs.replace(recipe, tasks=msgspec.structs.replace(recipe.tasks, **pinned_files))


def _made(member: Member, split: Split, count: int, seed: int) -> Sequence[Task]:
    tasks = member.make_tasks(split, count, seed)
    place, maker = f"tasks.{split}", f"make_tasks of environment {member.spec.label!r}"
    with users_code(f"{maker} returned what cannot be looked at:", place, "return a list of Tasks, and plain data in them"):
        _check_made(tasks, maker, place)
    return tasks


def _in_mixture(task: Task, member: str) -> Task:
    """Give a task to a member. Two members may make the same task, so the id says whose it is."""
    return msgspec.structs.replace(task, id=TaskId(f"{member}/{task.id}"), environment=member)


def load_held_out_tasks(recipe: Recipe, left_out: Mapping[str, Sequence[int]] = {}) -> list[HeldOutTask]:
    """Return the tasks for evaluation, in the order of their sources, but for those ``left_out``.

    Raises what :func:`load_sources` raises.
    """
    return held_out_tasks(load_sources(recipe, "evaluation"), recipe.evaluation.samples or 1, left_out)


def held_out_tasks(
    sources: Sequence[TaskSource], samples: int = 1, left_out: Mapping[str, Sequence[int]] = {}
) -> list[HeldOutTask]:
    """Return the tasks of ``sources`` in their order, to be evaluated on with ``samples`` episodes of each.

    Those whose places ``left_out`` names, by source, are not among them.

    The id of a task that another source has a task with, too, begins with the name of its own: results go by id.
    """
    none: frozenset[int] = frozenset()
    without = {name: frozenset(places) for name, places in left_out.items()}
    tasks = [
        (source.tasks[index], source.name)
        for source in sources
        for index in range(len(source.tasks))
        if index not in without.get(source.name, none)
    ]
    often = Counter(task.id for task, _ in tasks)
    return [HeldOutTask(task if often[task.id] == 1 else _in_source(task, source), source, samples) for task, source in tasks]


def _in_source(task: Task, source: str) -> Task:
    return msgspec.structs.replace(task, id=TaskId(f"{source}/{task.id}"))


def make_task_stream(recipe: Recipe, make_at_most: int | None = None) -> TaskStream:
    """Make the stream of training tasks; only the first ``make_at_most`` if the environment makes them.

    Raises:
        RecipeError: as :func:`load_sources`, or the curriculum cannot be loaded.
    """
    sources = load_sources(recipe, "train", make_at_most)
    return TaskStream(sources, recipe.seed, _curriculum(recipe, [source.name for source in sources]))


def recorded_task_stream(recipe: Recipe, sources: Sequence[RecordedSource]) -> TaskStream:
    """Return the stream of training tasks as a journal records it, without the tasks.

    Raises:
        RecipeError: the curriculum cannot be loaded.
    """
    return recorded_stream(sources, recipe.seed, _curriculum(recipe, [source.name for source in sources]))


def _curriculum(recipe: Recipe, sources: Sequence[str]) -> Curriculum | None:
    spec = recipe.tasks.curriculum
    return None if spec is None else load_curriculum(spec, sources)


def _check_made(tasks: Sequence[Task], maker: str, place: str) -> None:
    """Refuse what is not a list of tasks: the user's own environment may return anything."""
    if not isinstance(tasks, Sequence) or not tasks:
        raise RecipeError(place, f"{maker} returned {short(tasks)}", "return a list of at least one Task")
    for index, task in enumerate(tasks):
        if not isinstance(task, Task) or not isinstance(task.id, str) or not isinstance(task.prompt, str | tuple):
            remedy = "return Tasks whose id and prompt are text; a prompt may also be a tuple of Messages"
            raise RecipeError(place, f"{maker} returned {short(task)} at {index}", remedy)
        if isinstance(task.prompt, tuple) and (why := why_no_chat(task.prompt)):
            raise RecipeError(place, f"{maker} returned task {short(task.id)}, which {why}", "correct its prompt")
        if type(task) is not Task:
            raise RecipeError(place, f"{maker} returned a {type(task).__name__}", "return Tasks themselves, all else in data")
        if why := _altered(task):
            raise RecipeError(place, f"{maker} returned task {short(task.id)}, whose {why}", _PLAIN)
    if len({task.id for task in tasks}) < len(tasks):
        raise RecipeError(place, f"{maker} returned two tasks with the same id", "give each task an id of its own")


def _altered(task: Task) -> str:
    """Say which part of the task would change on its way to the environment or through the journal; empty if nothing would."""
    if not isinstance(task.data, dict):
        return f"data is {short(task.data)}"
    if is_too_deep(task.data):
        return f"data is {TOO_DEEP}"
    prompt: dict[str, Any] = {"prompt": task.prompt}
    if isinstance(task.prompt, tuple):
        prompt = {f"message {number} of its prompt": one.content for number, one in enumerate(task.prompt, start=1)}
        calls = [call.arguments for one in task.prompt for call in one.tool_calls]
        prompt |= {f"call {number} of its prompt": arguments for number, arguments in enumerate(calls, start=1)}
    parts = {"id": task.id, **prompt} | {f"data[{key!r}]": {key: value} for key, value in task.data.items()}
    for name, part in parts.items():
        try:
            arrived: Any = msgspec.msgpack.decode(
                msgspec.msgpack.encode(part), type=str if isinstance(part, str) else dict[str, Any]
            )
        except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError) as error:
            return f"{name} cannot be sent to the environment: {error}"
        if repr(arrived) != repr(part):  # == takes True for 1, and an enum's member for its text
            if isinstance(part, dict):
                (key,), (own_key,) = arrived, part
                if repr(key) != repr(own_key):
                    return f"{name}'s key would reach the environment as {key!r}"
                arrived, part = arrived[key], part[own_key]
            return f"{name} would reach the environment as {short(arrived)}, where {short(part)} is meant"
    return ""
