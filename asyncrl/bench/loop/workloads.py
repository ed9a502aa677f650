"""The workloads of ``asyncrl bench loop``: kinds of tasks that differ in what a trainer spends its time on.

Each names one tool, the script of the model, and the limits that apply to every trainer. Learning rate and group size are the
same everywhere; all other settings keep their defaults on both sides.
"""

import inspect
import random
from collections.abc import Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec

from asyncrl.bench.loop import workload_environments
from asyncrl.bench.loop.script import CALL, END_OF_CALL, SIZES, Script, Turn
from asyncrl.bench.peers import workload_tools
from asyncrl.bench.peers.workload_tools import WORDS
from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.schema import Recipe
from asyncrl.envs import ToolEnvironment
from asyncrl.run.recipe.compose import compose

LEARNING_RATE = 1e-6
"""Small enough that the scripted model still follows its script at the end."""
GROUP_SIZE = 8
WARM_UP_STEPS = 1
TASKS = 512
EVALUATION_TASKS = 8

_NEVER = 1_000_000
"""Training steps between evaluations or checkpoints: more than a run has. The first and last version are evaluated anyway."""
_SHARED = ("seed", "steps", "model", "environment", "tasks", "batch", "sampling", "learner.lr")
"""Recipe keys that the peer shares; no override may change them."""
_CHOICES = 10
"""How many numbers the model chooses from, for each argument of a call."""


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """A kind of task, with its model and its limits.

    Attributes:
        name: the workload's name on the command line and in the result.
        environment: the class of its environment.
        tool: name of the tool, which is a function in :mod:`asyncrl.bench.peers.workload_tools`.
        script: the turns of the model.
        instructions: text that the chat template writes before the tool's description.
        question: template of the prompts, with places for two numbers.
        max_turns: turns of the model in an episode.
        max_turn_tokens: limit of a turn's tokens; no turn reaches it.
        max_context: limit of an episode's tokens; no episode reaches it.
        groups_per_step: groups in a training step.
        steps: training steps that are measured, after ``WARM_UP_STEPS``.
        spread: standard deviation of an episode's sampled tokens, divided by their mean; 0 where all episodes are equally long.
    """

    name: str
    environment: type[ToolEnvironment]
    tool: str
    script: Script
    instructions: str
    question: str = "What is {} plus {}?"
    max_turns: int = 6
    max_turn_tokens: int = 64
    max_context: int
    groups_per_step: int = 16
    steps: int
    spread: float = 0.0

    def tasks(self, seed: int = 0) -> list[dict[str, str]]:
        """The rows of the task files: ``TASKS`` for training, then ``EVALUATION_TASKS`` for evaluation."""
        generator = random.Random(f"{self.name} {seed}")
        return [
            {"id": str(index), "prompt": self.question.format(generator.randint(10, 99), generator.randint(10, 99))}
            for index in range(TASKS + EVALUATION_TASKS)
        ]


class WorkloadFiles(msgspec.Struct, frozen=True):
    """The files that both sides read.

    Attributes:
        model: a Hugging Face folder.
        tasks: JSON lines with ``id`` and ``prompt``.
        evaluation: held-out tasks in the same format.
    """

    model: Path
    tasks: Path
    evaluation: Path


def make_files(workload: Workload, model: str, folder: Path) -> WorkloadFiles:
    """Write the model of size ``model`` and the tasks of a workload to ``folder``. This takes a few seconds."""
    from asyncrl.bench.loop.scripted_model import make_scripted_model  # imports torch, which measuring does not need

    material = WorkloadFiles(folder / "model", folder / "train.jsonl", folder / "evaluation.jsonl")
    rows = workload.tasks()
    documentation = inspect.getdoc(getattr(workload_tools, workload.tool)) or ""
    texts = [*(row["prompt"] for row in rows), " ".join(WORDS), workload.tool, documentation]
    make_scripted_model(material.model, SIZES[model], workload.script, workload.instructions, texts)
    for file, some in ((material.tasks, rows[:TASKS]), (material.evaluation, rows[TASKS:])):
        file.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in some))
    return material


def recipe(workload: Workload, model: str, material: WorkloadFiles, overrides: Sequence[str] = ()) -> Recipe:
    """The recipe of one run. Generators, buffer and learner have their defaults unless ``overrides`` set their keys.

    The run has more training steps than are measured. A run begins no episodes that it would not train, so near its end it plays
    fewer episodes ahead, and the last measured steps would be too fast.

    Raises:
        RecipeError: an override is refused, or it changes a key that the peer shares.
    """
    environment = f"{workload_environments.__name__}:{workload.environment.__name__}"
    settings: Mapping[str, Any] = {
        "name": f"bench-loop-{workload.name}-{model}",
        "steps": WARM_UP_STEPS + workload.steps,
        "model": {"path": str(material.model), "max_context": workload.max_context},
        "environment": {"name": environment, "max_turns": workload.max_turns},
        "tasks": {
            "kind": "files",
            "train": [{"path": str(material.tasks)}],
            "evaluation": [{"path": str(material.evaluation)}],
        },
        "batch": {"groups_per_step": workload.groups_per_step, "group_size": GROUP_SIZE},
        "sampling": {"max_turn_tokens": workload.max_turn_tokens},
        "algorithm": {
            "advantage": {"kind": "grpo"},
            "loss": {"kind": "dppo"},
            "correction": {"anchor": "behaviour", "weight": "none"},
        },
        "learner": {"lr": LEARNING_RATE},
        "evaluation": {"every": _NEVER},
        "checkpoint": {"every": _NEVER},
    }
    file = material.model.with_name(f"{workload.name}.yaml")
    file.write_bytes(msgspec.json.encode(settings))  # JSON is YAML
    plain, checked = compose(str(file)), compose(str(file), overrides)
    for key in _SHARED:
        value = attrgetter(key)
        if value(checked) != value(plain):
            raise RecipeError(key, "an override changes what every trainer is given", "override other keys only")
    return msgspec.structs.replace(checked, steps=checked.steps + checked.buffer.largest_depth + 1)


def _numbers(place: int) -> tuple[str, ...]:
    """The numbers that may stand at ``place``; they differ from those of every other place."""
    first = 10 + place * _CHOICES
    return tuple(str(number) for number in range(first, first + _CHOICES))


def _words(first: int, last: int) -> Turn:
    """Words that the model samples one after the other."""
    return [(f" {word}",) for word in WORDS[first:last]]


def _call(tool: str, parameters: Sequence[str]) -> Turn:
    """A call of a tool in the Hermes format."""
    opening: list[Sequence[str]] = [(CALL,), (f'\n{{"name": "{tool}", "arguments": {{"{parameters[0]}": ',)]
    for place, parameter in enumerate(parameters):
        opening += [(f', "{parameter}": ',)] if place else []
        opening += [_numbers(place)]
    return [*opening, ("}}\n",), (END_OF_CALL,)]


_SHORT = "Tools:"
_LONG = """\
You are an assistant that works with great care and may call functions to find out what it does not know. The functions that \
you may call are listed below, one in each line, as JSON objects with a name, a description, and the JSON schema of the \
parameters. To call a function, say in a few words why you need it, and then write a JSON object with its name and its \
arguments between the tags of a call; the result comes back in the next message. Call one function in each turn, and call none \
once you know the answer. Then answer in one sentence, and do not repeat the question. If a function fails, say so instead of \
guessing what it would have said. The functions are:"""

WORKLOADS: Mapping[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload(
            name="short",
            environment=workload_environments.Adding,
            tool=workload_tools.add.__name__,
            script=Script(call=_call("add", ("a", "b")), answer=[(" It",), (" is",), _numbers(8)], again=True),
            instructions=_SHORT,
            question="{}+{}",
            max_context=256,
            steps=20,
            spread=0.51,
        ),
        Workload(
            name="tools",
            environment=workload_environments.Adding,
            tool=workload_tools.add.__name__,
            script=Script(
                call=[*_words(0, 24), *_call("add", ("a", "b"))],
                answer=[*_words(30, 52), _numbers(8)],
            ),
            instructions=_LONG,
            max_context=384,
            steps=8,
        ),
        Workload(
            name="turns",
            environment=workload_environments.PageReading,
            tool=workload_tools.read_page.__name__,
            script=Script(call=[*_words(0, 24), *_call("read_page", ("page",))]),
            instructions=_LONG,
            question="What do the pages between {} and {} say?",
            max_turns=8,
            max_context=1664,
            groups_per_step=8,
            steps=3,
        ),
        Workload(
            name="slow",
            environment=workload_environments.SlowAdding,
            tool=workload_tools.slow_add.__name__,
            script=Script(
                call=[*_words(0, 22), *_call("slow_add", ("a", "b", "c"))],
                answer=[*_words(30, 52), _numbers(8)],
            ),
            instructions=_LONG,
            max_context=384,
            steps=4,
        ),
    )
}
