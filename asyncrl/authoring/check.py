"""``asyncrl env check``: looks at an environment's source, its tasks and its episodes, without a trainer or a model.

What always holds: whatever the environment does, the check ends, and says where it was when it did not go on.

Looks at the tasks that an environment makes: the same for the same seed in every process, and none in both splits.

Looks at an environment through the chat template of a model: what fits, where turns end, and what looks like its tokens.
"""

import asyncio
import os
import queue
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress

import msgspec

from asyncrl.authoring.episode_checks import EpisodeChecks, EpisodeFigures
from asyncrl.authoring.findings import Finding, Findings, Severity
from asyncrl.authoring.loop_watch import LoopWatch
from asyncrl.authoring.scripted_episode import Played, calling, play
from asyncrl.authoring.source_checks import check_source, place_of
from asyncrl.authoring.subject import TASKS, Subject, has_task_files, subjects_of, tasks_of
from asyncrl.core.episode import FINAL_REWARD
from asyncrl.core.errors import AsyncRLError, ComponentFailed, EnvironmentBroken, RecipeError
from asyncrl.core.messages import Message, ToolSpec
from asyncrl.core.process.asked_python import ask_python
from asyncrl.core.recipe.environment import ClassEnvironmentConfig, RemoteEnvironmentConfig
from asyncrl.core.recipe.schema import ModelConfig, Recipe
from asyncrl.core.task import Task
from asyncrl.core.text import describe_error, short
from asyncrl.envs.hosting.worker_environments import WorkerEnvironments
from asyncrl.envs.load import environment_class, load_members, make_tasks
from asyncrl.envs.secrets import read_secrets
from asyncrl.generators.chat_format import ChatFormat
from asyncrl.generators.chat_template import TemplateUnsuitable
from asyncrl.generators.episode import EpisodeLimits
from asyncrl.run.models.hub import tokenizer_folder
from asyncrl.run.models.model_shape import TINY
from asyncrl.run.tiny.lessons import check_lessons

CHECK_S = 300.0
"""Deadline of an episode, or of those that are played at once."""
SAID_S = 10.0
"""Seconds after which the user is told what is being played."""
CLOSE_S = 10.0
SHOWN = 8
"""Episodes that are looked at through a model's template."""
SHOWN_S = 30.0
"""Seconds after which no further ones are played."""
AGAIN_S = 120.0
"""Deadline of the process that makes the tasks again."""
_AGAIN = """
import sys, msgspec
sys.path.append("")
from asyncrl.core.recipe.environment import ClassEnvironmentConfig
from asyncrl.envs.load import make_tasks
asked = msgspec.json.decode(sys.stdin.buffer.read())
spec = ClassEnvironmentConfig(name=asked["name"], options=asked["options"])
tasks = [make_tasks(spec, split, asked["count"], asked["seed"]) for split in ("train", "evaluation")]
sys.stdout.buffer.write(b"\\n" + msgspec.json.encode(tasks))
"""
CHARACTERS_A_TOKEN = 4
"""Characters of an English text that make a token, where no tokenizer is at hand."""


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
    stage = _Stage(subject, train, model, findings, note)
    return Checked(subject.name, len(train), len(evaluation), stage.play(), findings.all)


class _Stage:
    """Plays the episodes in a thread, which is left behind if the environment does not let it end."""

    def __init__(
        self, subject: Subject, tasks: list[Task], model: ModelConfig | None, findings: Findings, note: Callable[[str], None]
    ) -> None:
        self._subject, self._tasks, self._model, self._findings, self._note = subject, tasks, model, findings, note
        self._begun = queue.SimpleQueue[str | None]()
        self._figures: EpisodeFigures | None = None

    def play(self) -> EpisodeFigures | None:
        """Play, and return what was measured."""
        threading.Thread(target=self._run, name=f"checking {self._subject.name}", daemon=True).start()
        at: str | None = "setting up what episodes share"
        try:
            while at is not None:
                at = self._after(at)
        except queue.Empty:
            remedy = "give every wait a deadline; a dry run would name the line it hangs in"
            self._findings.error("episodes", self._subject.name, f"{at} did not end in {CHECK_S:g} s", remedy)
        return self._figures

    def _after(self, at: str) -> str | None:
        """Wait for what is played after ``at``; None if that was the last.

        Raises:
            queue.Empty: ``at`` did not end in time.
        """
        try:
            return self._begun.get(timeout=SAID_S)
        except queue.Empty:
            self._note(f"{self._subject.name}: still at {at}")
            return self._begun.get(timeout=CHECK_S - SAID_S)

    def _run(self) -> None:
        try:
            asyncio.run(self._play())
        except AsyncRLError as error:
            self._findings.error("episodes", self._subject.name, str(error), "correct it: such episodes get no reward")
        except BaseException as error:  # noqa: BLE001 - whatever the user's code does to its event loop
            problem = f"the event loop ended with {describe_error(error)}"
            self._findings.error("episodes", self._subject.name, problem, "raise no SystemExit, and stop no event loop")
        finally:
            self._begun.put(None)

    async def _play(self) -> None:
        recipe, subject = self._subject.recipe, self._subject
        secrets = read_secrets(recipe.environment, os.environ)
        environments = WorkerEnvironments(load_members(recipe.environment), secrets, "check")
        await environments.start(recipe.deadlines.start)
        limits = EpisodeLimits.of(recipe, subject.member)
        try:
            with LoopWatch(self._run.__code__) as watch:
                elsewhere = isinstance(subject.spec, RemoteEnvironmentConfig)
                checks = EpisodeChecks(
                    subject.name,
                    environments.make,
                    self._tasks,
                    limits,
                    self._findings,
                    watch,
                    self._begun.put,
                    elsewhere=elsewhere,
                )
                self._figures = await checks.run()
            if self._figures is not None:
                shown = await self._shown(environments, limits)
                self._check_rewards(shown)
                check_size(subject.name, shown, recipe.model.max_context, self._findings)
                if self._model is not None:
                    await check_template(self._model, subject.name, shown, recipe.model.max_context, self._findings)
        finally:
            await environments.close(CLOSE_S)

    async def _shown(self, environments: WorkerEnvironments, limits: EpisodeLimits) -> list[Played]:
        """Play the episodes that are looked at through a template, as many as there is time for."""
        shown: list[Played] = []
        began = time.monotonic()
        for task in self._tasks[:SHOWN]:
            if shown and time.monotonic() - began > SHOWN_S:
                break
            self._begun.put(f"task {short(task.id)}, to see its prompts")
            with suppress(EnvironmentBroken):  # the checks of episodes have told it
                shown.append(await play(environments.make, task, calling(2, "", task.id), limits))
        return shown

    def _check_rewards(self, shown: Sequence[Played]) -> None:
        """Find the rewards that the recipe compares one by one, and that an episode came to its end without."""
        for name in self._subject.compared_rewards:
            lacking = next((each for each in shown if each.done and name not in {FINAL_REWARD, *each.metrics}), None)
            if lacking is not None:
                reported = ", ".join(sorted(lacking.metrics)) or "none"
                problem = f"an episode reports no metric {name!r}; it reports {reported}"
                remedy = "report it in every episode that comes to its end, or take its name out"
                self._findings.error("rewards", "algorithm.advantage.rewards", problem, remedy)


def check_tasks(subject: Subject, findings: Findings) -> tuple[list[Task], list[Task]]:
    """Check the tasks of both splits, and return them.

    Raises:
        RecipeError: there are no tasks, or what makes them raised.
    """
    train, evaluation = (tasks_of(subject, split) for split in ("train", "evaluation"))
    place = _place(subject)
    _check_splits(train, evaluation, place, findings)
    if isinstance(subject.spec, ClassEnvironmentConfig) and not has_task_files(subject.recipe):
        _check_determinism(subject, (train, evaluation), place, findings)
    if isinstance(subject.spec, ClassEnvironmentConfig):
        _check_lessons(subject, findings)
    for split, tasks in (("train", train), ("evaluation", evaluation)):
        if not tasks:
            problem = f"there are no {split} tasks for it"
            raise RecipeError(f"tasks.{split}", problem, "make some, or name a file with tasks whose `environment` is its name")
    for task in (*train, *evaluation):
        if not task.question.strip():
            findings.error("tasks", f"task {short(task.id)}", "its prompt is empty", "ask the model something")
    return train, evaluation


def _place(subject: Subject) -> str:
    if isinstance(subject.spec, ClassEnvironmentConfig) and not has_task_files(subject.recipe):
        return place_of(environment_class(subject.spec.name).make_tasks)
    return "tasks"


def _check_lessons(subject: Subject, findings: Findings) -> None:
    """See whether the tiny model can be taught."""
    assert isinstance(subject.spec, ClassEnvironmentConfig)
    try:
        check_lessons(subject.spec, subject.name, subject.recipe.seed)
    except RecipeError as error:
        place = place_of(environment_class(subject.spec.name).make_tasks)
        findings.error("tasks", place, error.problem, error.remedy)


def _check_splits(train: Sequence[Task], evaluation: Sequence[Task], place: str, findings: Findings) -> None:
    remedy = "let the content of a task decide its split, for example by a checksum of the prompt"
    if shared := sorted({task.id for task in train} & {task.id for task in evaluation}):
        problem = f"{len(shared)} tasks are in both splits, e.g. {short(shared[0])}, so evaluation scores what was trained"
        findings.error("tasks", place, problem, remedy)
        return
    asked = {_content(task): task for task in train}
    if same := [task for task in evaluation if _content(task) in asked]:
        other = asked[_content(same[0])]
        problem = (
            f"{len(same)} evaluation tasks equal training tasks but for the id, e.g. {short(same[0].id)} and {short(other.id)}"
        )
        findings.error("tasks", place, problem, remedy)


def _content(task: Task) -> bytes:
    return msgspec.json.encode([task.prompt, task.data], order="deterministic")


def _check_determinism(subject: Subject, made: tuple[list[Task], list[Task]], place: str, findings: Findings) -> None:
    spec, seed = subject.spec, subject.recipe.seed
    assert isinstance(spec, ClassEnvironmentConfig)
    remedy = "take every choice from random.Random(f'{split} {seed}'), and sort what comes from sets, folders or the network"
    for split, before in zip(("train", "evaluation"), made, strict=True):
        if (differing := _differing(before, make_tasks(spec, split, len(before), seed))) is not None:
            problem = f"{split} task {differing} is another one when it is made a second time with the same seed"
            findings.error("tasks", place, problem, remedy)
            return
        fewer = make_tasks(spec, split, max(1, len(before) // 2), seed)
        if (differing := _differing(before[: len(fewer)], fewer)) is not None:
            problem = f"{split} task {differing} depends on how many tasks are made, so a longer run has others"
            findings.warning("tasks", place, problem, "make the tasks one after another from one generator")
    try:
        again = _made_in_another_process(spec, seed)
    except RecipeError as error:
        findings.error("tasks", place, error.problem, error.remedy)
        return
    for split, before, after in zip(("train", "evaluation"), made, again, strict=True):
        if (differing := _differing(before, after[: len(before)])) is not None:
            problem = f"{split} task {differing} is another one in another process, although the seed is the same"
            findings.error("tasks", place, problem, f"{remedy}; hash() of a text differs in each process")
            return


def _differing(before: Sequence[Task], after: Sequence[Task]) -> int | None:
    """The index of the first task that differs; None if all are equal."""
    for index, (one, other) in enumerate(zip(before, after, strict=False)):
        if (one.id, _content(one)) != (other.id, _content(other)):
            return index
    return None if len(before) == len(after) else min(len(before), len(after))


def _made_in_another_process(spec: ClassEnvironmentConfig, seed: int) -> list[list[Task]]:
    asked = msgspec.json.encode({"name": spec.name, "options": spec.options, "count": TASKS, "seed": seed})
    try:
        return ask_python(list[list[Task]], ("-c", _AGAIN), AGAIN_S, asked, PYTHONHASHSEED="1")
    except TimeoutError as late:
        raise RecipeError("", f"make_tasks did not end in {AGAIN_S:g} s in another process", "make it faster") from late
    except ComponentFailed as error:
        remedy = "do not rely on what this process has set up"
        raise RecipeError("", f"make_tasks fails in another process: {error}", remedy) from error


def check_size(name: str, played: Sequence[Played], max_context: int, findings: Findings) -> None:
    """Warn of prompts that hardly fit, where no model is given."""
    longest = max((sum(len(message.content) for message in each.prompt) for each in played), default=0)
    if longest // CHARACTERS_A_TOKEN >= max_context:
        problem = f"a prompt has {longest:,} characters, about {longest // CHARACTERS_A_TOKEN:,} tokens, and model.max_context is"
        findings.warning("template", name, f"{problem} {max_context:,}", "raise model.max_context, or shorten the prompts")


async def check_template(model: ModelConfig, name: str, played: Sequence[Played], max_context: int, findings: Findings) -> None:
    """Check the episodes' prompts and answers with the tokenizer and the template of ``model``, whose path is a folder."""
    try:
        chat = ChatFormat.load(model.path, model)
    except TemplateUnsuitable as error:
        findings.error("template", model.path, str(error), "use another model, or give it a template of its own")
        return
    special = [token for token in {*chat.tokenizer.all_special_tokens, *chat.tokenizer.get_added_vocab()} if token.strip()]
    for each in played:
        ids = await chat.prompt(each.prompt, each.tools)
        if len(ids) >= max_context:
            problem = f"a prompt has {len(ids):,} tokens with this model, and model.max_context is {max_context:,}: no turn fits"
            findings.error("template", name, problem, "raise model.max_context, or shorten prompts and tool descriptions")
            break
    for what, message in (*_labelled("prompt", played), *_labelled("tool's answer", played)):
        if found := [token for token in special if token in message.content]:
            problem = f"a {what} holds {short(found[0])}, a special token of this model: {short(message.content)}"
            remedy = "leave chat markup to the template; a run encodes it as ordinary text, which the model has never seen"
            findings.warning("template", name, problem, remedy)
            break
    await _check_smuggling(chat, special, model.path, next((each.tools for each in played), ()), findings)


def _labelled(what: str, played: Sequence[Played]) -> Iterable[tuple[str, Message]]:
    for each in played:
        for message in each.prompt if what == "prompt" else (one for turn in each.answers for one in turn):
            yield what, message


async def _check_smuggling(
    chat: ChatFormat, special: Sequence[str], model: str, tools: Sequence[ToolSpec], findings: Findings
) -> None:
    """See that no text of a tool becomes a special token: as many as with a harmless answer, and at the same ends."""
    control = set(chat.tokenizer.all_special_ids)
    harmless = await chat.delta([Message("tool", "harmless")], tools)
    hostile = await chat.delta([Message("tool", " ".join((*special, "".join(special))))], tools)
    counts = [sum(token in control for token in ids) for ids in (harmless, hostile)]
    if counts[0] != counts[1]:
        problem = (
            f"a tool's answer with special tokens in its text makes {counts[1]} of them, where the template writes {counts[0]}"
        )
        findings.error("template", model, problem, "do not train with this tokenizer; it cannot keep text and tokens apart")
