"""``asyncrl env check``: looks at an environment's source, its tasks and its episodes, without a trainer or a model.

What always holds: whatever the environment does, the check ends, and says where it was when it did not go on.
"""

import asyncio
import os
import threading
from collections.abc import Callable

import msgspec

from asyncrl.authoring.episode_checks import EpisodeChecks, EpisodeFigures
from asyncrl.authoring.findings import Finding, Findings, Severity
from asyncrl.authoring.loop_watch import LoopWatch
from asyncrl.authoring.played import Played, calling, play
from asyncrl.authoring.source_checks import check_source
from asyncrl.authoring.subject import Subject, subjects_of
from asyncrl.authoring.task_checks import check_tasks
from asyncrl.authoring.template_checks import check_size, check_template
from asyncrl.core.errors import AsyncRLError, EnvironmentBroken, RecipeError
from asyncrl.core.recipe.environment import ClassEnvironmentConfig
from asyncrl.core.recipe.schema import ModelConfig, Recipe
from asyncrl.core.task import Task
from asyncrl.core.text import describe_error
from asyncrl.envs.hosting.worker_environments import WorkerEnvironments
from asyncrl.envs.load import environment_class, load_members
from asyncrl.envs.secrets import read_secrets
from asyncrl.run.models.hub import tokenizer_folder
from asyncrl.run.models.model_shape import TINY
from generators.episode import EpisodeLimits

CHECK_S = 240.0
"""Deadline of all episodes of one environment."""
CLOSE_S = 10.0
SHOWN = 8
"""Episodes that are looked at through a model's template."""


class Checked(msgspec.Struct, frozen=True):
    """What was found in one environment.

    Attributes:
        environment: its name.
        train, evaluation: tasks that were looked at.
        figures: what its episodes measured; None if none could be played.
        findings: errors first.
    """

    environment: str
    train: int
    evaluation: int
    figures: EpisodeFigures | None
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> int:
        """How many findings are errors."""
        return sum(each.severity is Severity.ERROR for each in self.findings)


def check(recipe: Recipe, model: str | None, note: Callable[[str], None]) -> tuple[Checked, ...]:
    """Check each environment of a recipe.

    Args:
        model: a model whose template the episodes are looked at through, as a folder or an id on the hub; None for the
            recipe's own, unless that is the tiny one.
        note: shows the user a line about what is being done.

    Raises:
        RecipeError: an environment cannot be loaded, or a model of the hub not found, so nothing was checked.
    """
    load_members(recipe.environment)
    looked_through = recipe.model if model is None else ModelConfig(path=model)
    if looked_through.path == TINY:
        return tuple(_check(subject, None, note) for subject in subjects_of(recipe))
    folder = str(tokenizer_folder(looked_through.path, "model.path"))
    looked_through = msgspec.structs.replace(looked_through, path=folder)
    return tuple(_check(subject, looked_through, note) for subject in subjects_of(recipe))


def _check(subject: Subject, model: ModelConfig | None, note: Callable[[str], None]) -> Checked:
    findings = Findings()
    if isinstance(subject.spec, ClassEnvironmentConfig):
        note(f"{subject.name}: reading its source")
        check_source(environment_class(subject.spec.name), findings)
    note(f"{subject.name}: making its tasks")
    try:
        train, evaluation = check_tasks(subject, findings)
    except RecipeError as error:
        findings.error("tasks", error.place or subject.name, error.problem, error.remedy)
        return Checked(subject.name, 0, 0, None, findings.all)
    note(f"{subject.name}: playing episodes")
    stage = _Stage(subject, train, model, findings)
    return Checked(subject.name, len(train), len(evaluation), stage.play(), findings.all)


class _Stage:
    """Plays the episodes in a thread, which is left behind if the environment does not let it end."""

    def __init__(self, subject: Subject, tasks: list[Task], model: ModelConfig | None, findings: Findings) -> None:
        self._subject, self._tasks, self._model, self._findings = subject, tasks, model, findings
        self._checks: EpisodeChecks | None = None
        self._figures: EpisodeFigures | None = None

    def play(self) -> EpisodeFigures | None:
        """Play, and return what was measured."""
        thread = threading.Thread(target=self._run, name=f"checking {self._subject.name}", daemon=True)
        thread.start()
        thread.join(CHECK_S)
        if thread.is_alive():
            at = self._checks.at if self._checks is not None else "setting up what episodes share"
            remedy = "give every wait a deadline; the preflight of a run would name the line it hangs in"
            self._findings.error("episodes", self._subject.name, f"{at} did not end in {CHECK_S:g} s", remedy)
        return self._figures

    def _run(self) -> None:
        try:
            asyncio.run(self._play())
        except AsyncRLError as error:
            self._findings.error("episodes", self._subject.name, str(error), "correct it: such episodes get no reward")
        except BaseException as error:  # noqa: BLE001 - whatever the user's code does to its event loop
            problem = f"the event loop ended with {describe_error(error)}"
            self._findings.error("episodes", self._subject.name, problem, "raise no SystemExit, and stop no event loop")

    async def _play(self) -> None:
        recipe, subject = self._subject.recipe, self._subject
        secrets = read_secrets(recipe.environment, os.environ)
        environments = WorkerEnvironments(load_members(recipe.environment), secrets, "check")
        await environments.start(recipe.deadlines.start)
        limits = EpisodeLimits.of(recipe, subject.member)
        try:
            with LoopWatch(self._run.__code__) as watch:
                self._checks = EpisodeChecks(subject.name, environments.make, self._tasks, limits, self._findings, watch)
                self._figures = await self._checks.run()
            if self._figures is not None:
                shown = [played for task in self._tasks[:SHOWN] if (played := await _shown(environments, task, limits))]
                check_size(subject.name, shown, recipe.model.max_context, self._findings)
                if self._model is not None:
                    await check_template(self._model, subject.name, shown, recipe.model.max_context, self._findings)
        finally:
            await environments.close(CLOSE_S)


async def _shown(environments: WorkerEnvironments, task: Task, limits: EpisodeLimits) -> Played | None:
    try:
        return await play(environments.make, task, calling(2, "", task.id), limits)
    except EnvironmentBroken:
        return None  # the checks of episodes have told it
