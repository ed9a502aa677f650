"""What an evaluation of models will consist of, known and checked before anything starts.

What always holds: all models play the same tasks with the same limits and the same sampling. Their recipes differ in
``model.path``, and in what is chosen for the size of a model.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any

import msgspec

from asyncrl.buffers.tasks.task_files import remarks_on_rows
from asyncrl.core.architectures.known import KNOWN, OTHER
from asyncrl.core.errors import AsyncRLError, RecipeError
from asyncrl.core.ids import TaskId
from asyncrl.core.recipe.buffer import NoJournalConfig
from asyncrl.core.recipe.generators import MAIN_POOL
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.recipe.trajectories import AllTrajectoriesConfig
from asyncrl.envs.load import check_members
from asyncrl.generators.evaluation import HeldOutTask
from asyncrl.generators.vllm.engine_arguments import check_cpu_arguments, check_engine_arguments
from asyncrl.generators.vllm.vllm_parsers import check_parsers
from asyncrl.learners.checkpointing.checkpoint_check import check_checkpoint
from asyncrl.run.buffer.tasks import held_out_tasks, load_sources
from asyncrl.run.dry_run.environment_trial import play_first_tasks
from asyncrl.run.dry_run.model_check import ModelCheck
from asyncrl.run.dry_run.plan import place_on
from asyncrl.run.dry_run.prompt_lengths import TooLong
from asyncrl.run.evaluation.found_model import NAME_A_MODEL, EvaluatedModel, Weights, find_model, recipe_that_trained
from asyncrl.run.evaluation.request import EvaluationRequest
from asyncrl.run.folder.run_folder import RunFolder, in_launch_directory
from asyncrl.run.models.hub import folder_with_weights, model_file
from asyncrl.run.models.model_shape import TINY, check_ranks, positions_of
from asyncrl.run.models.model_weights import check_played
from asyncrl.run.nodes.machine import Machine
from asyncrl.run.nodes.process_kinds import pools_of
from asyncrl.run.recipe.compose import compose_for
from asyncrl.run.tiny.lessons import remarks_on

SAMPLES = 8
"""Episodes of each task, unless something else is asked for or sampling is greedy."""


class PlannedModel(msgspec.Struct, frozen=True):
    """A model and what it is evaluated by.

    Attributes:
        recipe: the recipe of its evaluation.
        trained_by: the recipe of the run that has its weights as a checkpoint, or began with them; else None.
    """

    model: EvaluatedModel
    recipe: Recipe
    trained_by: Recipe | None


class EvaluationPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What an evaluation will consist of.

    Attributes:
        models: the models, with different names.
        tasks: the held-out tasks, in the order of their sources.
        samples: episodes of each task.
        remarks: what is allowed but probably not meant.
    """

    models: tuple[PlannedModel, ...]
    tasks: Sequence[HeldOutTask]
    samples: int
    remarks: tuple[str, ...]

    @property
    def recipe(self) -> Recipe:
        """The recipe of the first model's evaluation."""
        return self.models[0].recipe

    @property
    def sources(self) -> dict[str, list[TaskId]]:
        """The ids of the tasks of each source."""
        found: dict[str, list[TaskId]] = {}
        for each in self.tasks:
            found.setdefault(each.source, []).append(each.task.id)
        return found


@contextmanager
def in_directory_of(request: EvaluationRequest) -> Iterator[EvaluationRequest]:
    """Work where the relative paths of the recipe begin: where its run was launched, if it is that of a run.

    Gives the request as it reads there.

    Raises:
        RecipeError: as :func:`asyncrl.run.folder.run_folder.in_launch_directory`.
    """
    if request.recipe is not None or (run := _first_run(request.models)) is None:
        yield request
        return
    absolute = tuple(str(Path(word).resolve()) if Path(word).exists() else word for word in request.models)
    with in_launch_directory(run):
        yield msgspec.structs.replace(request, models=absolute)


def plan_evaluation(request: EvaluationRequest, note: Callable[[str], None] = lambda text: None) -> EvaluationPlan:
    """Find the models, compose the recipe for each, read the tasks, and play one of each source with an empty answer.

    Args:
        note: shows the user a line while the environment takes long to play a task.

    Raises:
        RecipeError: this machine has too few GPUs; a model, a version, the recipe, its environment, its tasks or its tool parser
            is missing; they do not fit together; or the environment breaks when a task is played.
    """
    models = _named_apart(tuple(_find_models(request)))
    for model in models:
        _check_weights(model)
    recipe = request.recipe or _recipe_of_a_run(request.models)
    machine = Machine.for_runs()
    planned = tuple(_plan_model(model, recipe, request.overrides, machine) for model in models)
    first = planned[0].recipe
    check_members(first.environment, os.environ)
    check_engine_arguments(first.generators.engine, MAIN_POOL)
    if not machine.gpus:
        check_cpu_arguments(first.generators.engine, MAIN_POOL)
    greedy = first.evaluation.temperature == 0
    samples = request.samples or first.evaluation.samples or (1 if greedy else SAMPLES)
    sources = load_sources(first, "evaluation")
    skipped = remarks_on_rows(sources, "evaluation")
    for each in planned:
        check_parsers(each.recipe.model.tool_parser, each.recipe.model.reasoning_parser)  # one of a plug-in takes seconds
        if (here := folder_with_weights(each.recipe.model.path)) is not None and each.recipe.model.path != TINY:
            check_played(here)
    with ExitStack() as checking:
        checks = [checking.enter_context(ModelCheck(each.recipe, None)) for each in planned]
        rehearsed = play_first_tasks(first, (("evaluation", sources),), note)
        tried = [check.tried(rehearsed, note) for check in checks]
    too_long = [each for one in tried for each in one.too_long]
    found = [remark for one in tried for remark in one.remarks] + [f"{each}; no model plays such tasks" for each in too_long]
    remarks = list(dict.fromkeys([*skipped, *rehearsed.remarks, *remarks_on(first), *found]))
    if greedy and samples > 1:
        remarks.append(
            f"evaluation.temperature is 0, so the {samples} samples of a task differ only where its environment or the engine's "
            "rounding does; set evaluation.temperature=1 to sample"
        )
    without = {name: sorted(places) for name, places in _of_any(too_long).items()}
    tasks = held_out_tasks(sources, samples, without)
    if not tasks:
        problem = f"each held-out task has a prompt that leaves no room for a turn, with one of {len(models)} models"
        raise RecipeError("model.max_context", problem, "raise it, or evaluate the models apart")
    if request.tasks is not None:
        tasks = _in_turn(tasks)[: request.tasks]
    return EvaluationPlan(models=planned, tasks=tasks, samples=samples, remarks=tuple(remarks))


def _of_any(found: Sequence[TooLong]) -> dict[str, set[int]]:
    """Return the places of tasks, by source, that are too long for one of the models: all models play the same tasks."""
    places: dict[str, set[int]] = {}
    for each in found:
        places.setdefault(each.name, set()).update(each.indexes)
    return places


def _in_turn(tasks: Sequence[HeldOutTask]) -> list[HeldOutTask]:
    """Order tasks so that the first ones are the first of each source, then the second ones, and so on."""
    by_source: dict[str, list[HeldOutTask]] = {}
    for task in tasks:
        by_source.setdefault(task.source, []).append(task)
    return [task for several in zip_longest(*by_source.values()) for task in several if task is not None]


def _find_models(request: EvaluationRequest) -> Iterator[EvaluatedModel]:
    if not request.models:
        raise RecipeError("", "no model is named", NAME_A_MODEL)
    runs = [(Path(word) / "recipe.yaml").is_file() for word in request.models]
    if request.versions and not any(runs):
        find_model(request.models[0], request.versions[0])  # says that only runs have versions
    for word, is_run in zip(request.models, runs, strict=True):
        for version in (request.versions if is_run else ()) or (None,):
            yield find_model(word, version)


def _check_weights(model: EvaluatedModel) -> None:
    """Refuse a damaged checkpoint before the models named before it are played."""
    if model.weights is Weights.CHECKPOINT:
        try:
            check_checkpoint(model.path)
        except AsyncRLError as error:
            raise RecipeError("", str(error), "nothing was started") from error


def _named_apart(models: Sequence[EvaluatedModel]) -> tuple[EvaluatedModel, ...]:
    """Return the models, those of equal names with their whole paths."""
    names = [model.name for model in models]
    apart = [model if names.count(model.name) == 1 else msgspec.structs.replace(model, name=str(model.path)) for model in models]
    for index, model in enumerate(apart):
        if model in apart[:index]:
            raise RecipeError("", f"the model {model.name!r} is named twice", "name it once")
    return tuple(apart)


def _first_run(words: Sequence[str]) -> RunFolder | None:
    return next((RunFolder(Path(word)) for word in words if (Path(word) / "recipe.yaml").is_file()), None)


def _recipe_of_a_run(words: Sequence[str]) -> str:
    run = _first_run(words)
    if run is None:
        raise RecipeError("", "no recipe is named, and none of the models is of a run", "name the recipe after the models")
    return str(run.recipe)


def _plan_model(model: EvaluatedModel, recipe: str, overrides: Sequence[str], machine: Machine) -> PlannedModel:
    trained_by, path = None, str(model.path)
    if model.run is not None and model.weights is not Weights.FOLDER:
        trained_by = recipe_that_trained(model.run)
        path = trained_by.model.path
    composed = _with_template_of(trained_by, _one_pool(compose_for(machine, recipe, overrides, path)[0]))
    _check_model(composed)
    if machine.gpus:
        place_on(machine, composed, pools_of(composed, on_gpus=True))
    # Nothing is trained, so there is nothing to resume; and all episodes are kept, whatever is kept in training.
    tracking = msgspec.structs.replace(composed.tracking, trajectories=AllTrajectoriesConfig())
    buffer = msgspec.structs.replace(composed.buffer, journal=NoJournalConfig())
    return PlannedModel(model, msgspec.structs.replace(composed, tracking=tracking, buffer=buffer), trained_by)


def _with_template_of(trained_by: Recipe | None, recipe: Recipe) -> Recipe:
    """Return a recipe with the chat template that a run trained with, as its exported model has, unless it names another."""
    model = recipe.model
    if trained_by is None or model.chat_template is not None or model.chat_template_kwargs:
        return recipe
    own = trained_by.model
    model = msgspec.structs.replace(model, chat_template=own.chat_template, chat_template_kwargs=own.chat_template_kwargs)
    if own.chat_template is not None:
        model = msgspec.structs.replace(model, tool_parser=own.tool_parser)
    return msgspec.structs.replace(recipe, model=model)


def _one_pool(recipe: Recipe) -> Recipe:
    """Return a recipe without further pools: whatever they play in a run, here all engines evaluate."""
    return msgspec.structs.replace(recipe, generators=msgspec.structs.replace(recipe.generators, pools={}, role="both"))


class _Config(msgspec.Struct):
    """What is checked of a ``config.json``; what it leaves out, the engine knows."""

    architectures: tuple[str, ...] | None = None

    @property
    def is_dense(self) -> bool:
        """Whether the model is known to have no experts."""
        return KNOWN.get((self.architectures or ("none",))[0], OTHER).experts is None


def _check_model(recipe: Recipe) -> None:
    """Refuse a ``model.max_context`` that the model does not have, and ranks that would divide experts which it does not have.

    All else is checked by the engine, which knows more models.
    """
    if recipe.model.path == TINY:
        check_ranks(False, MAIN_POOL, recipe.generators)
        return
    config = model_file(recipe.model.path, "config.json", "model.path")
    try:
        content = msgspec.json.decode(config.read_bytes(), type=dict[str, Any])
        read = msgspec.convert(content, _Config)
    except (OSError, ValueError, RecursionError) as error:
        raise RecipeError("model.path", f"cannot read {config}: {error}", "name a folder with a model") from error
    check_ranks(not read.is_dense, MAIN_POOL, recipe.generators)
    positions = positions_of(content)
    if positions is not None and recipe.model.max_context > positions:
        problem = f"{recipe.model.max_context} is more than the {positions} positions of {recipe.model.path}"
        raise RecipeError("model.max_context", problem, f"set it to at most {positions}")
