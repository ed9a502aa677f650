"""Looks at the tasks that an environment makes: the same for the same seed in every process, and none in both splits."""

import os
import subprocess
import sys
from collections.abc import Sequence

import msgspec

from asyncrl.authoring.findings import Findings
from asyncrl.authoring.source_checks import place_of
from asyncrl.authoring.subject import TASKS, Subject, has_task_files, tasks_of
from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.environment import ClassEnvironmentConfig
from asyncrl.core.task import Task
from asyncrl.core.text import short
from asyncrl.envs.load import environment_class, make_tasks
from asyncrl.run.tiny.lessons import check_lessons

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
    variables = os.environ | {"PYTHONHASHSEED": "1"}
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _AGAIN], input=asked, capture_output=True, timeout=AGAIN_S, check=True, env=variables
        )
        return msgspec.json.decode(done.stdout.splitlines()[-1], type=list[list[Task]])
    except subprocess.TimeoutExpired as error:
        raise RecipeError("", f"make_tasks did not end in {AGAIN_S:g} s in another process", "make it faster") from error
    except subprocess.CalledProcessError as error:
        last = (error.stderr.decode(errors="replace").strip().splitlines() or ["no reason"])[-1]
        raise RecipeError(
            "", f"make_tasks fails in another process: {last}", "do not rely on what this process has set up"
        ) from error
