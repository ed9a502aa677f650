"""Makes the tiny model: demonstrations, tokenizer, supervised warm-up, Hugging Face folder."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

from asyncrl.core.recipe.environment import ClassEnvironment
from asyncrl.core.task import Task
from asyncrl.envs.demonstrations import Demonstration, demonstrate, demonstrate_impatience, demonstrate_mistake
from asyncrl.envs.load import make_tasks
from learners.tiny.conversations import Example, encode, render
from learners.tiny.settings import WarmUp
from learners.tiny.tokenizer import fit_tokenizer
from learners.tiny.warmup import CONTEXT_LENGTH, Material, Measurement, warm_up

_TOKENIZER_TASKS = 300
_SHOWN = (demonstrate, demonstrate_mistake)
"""The kinds of demonstrations that the tokenizer is fitted to."""


def make(
    folder: Path, environment: ClassEnvironment, seed: int, settings: WarmUp, progress: Callable[[float, str], None]
) -> None:
    """Make the tiny model in ``folder``; ``progress`` is called with a share in [0, 1] and a text.

    Raises:
        WarmUpFailed: if the warm-up did not teach the model what it should.
    """
    progress(0.0, "fitting the tokenizer")
    training = make_tasks(environment, "train", settings.training_tasks, seed)
    held_out = make_tasks(environment, "evaluation", settings.held_out_tasks, seed)
    tokenizer = fit_tokenizer(render([show(task) for task in training[:_TOKENIZER_TASKS] for show in _SHOWN]), CONTEXT_LENGTH)
    generator = random.Random(seed)

    def rows(tasks: Sequence[Task], show: Callable[[Task], Demonstration]) -> list[list[Example]]:
        return [encode([show(task) for task in kind], tokenizer) for kind in _by_operations(tasks)]

    def report(measured: Measurement) -> None:
        text = f"step {measured.step}: {measured.success:.0%} of held-out tasks solved"
        progress(measured.step / settings.steps, text)

    material = Material(
        train=rows(training, lambda task: demonstrate_impatience(task, settings.impatience, generator)),
        held_out=rows(held_out, demonstrate),
        spared=rows([task for task in held_out if "+" not in task.prompt], demonstrate),
    )
    model = warm_up(tokenizer, material, settings, seed, report)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _by_operations(tasks: Sequence[Task]) -> list[list[Task]]:
    """Group the tasks by their number of operations, fewest first."""
    kinds: dict[int, list[Task]] = {}
    for task in tasks:
        kinds.setdefault(len(demonstrate(task).calls), []).append(task)
    return [kinds[operations] for operations in sorted(kinds)]
