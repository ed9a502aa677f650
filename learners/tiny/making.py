"""Makes the tiny model: demonstrations, tokenizer, supervised warm-up, Hugging Face folder, and a check that it plays."""

from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import fmean

from asyncrl.core.recipe.environment import ClassEnvironment
from asyncrl.core.task import Task
from learners.tiny.conversations import encode, render
from learners.tiny.material import Kind, kinds_of, shown, subjects_of
from learners.tiny.settings import WarmUp
from learners.tiny.tokenizer import fit_tokenizer
from learners.tiny.warmup import CONTEXT_LENGTH, Measurement, Rows, WarmUpFailed, warm_up

_WARMED_UP = 0.95
"""Progress when the model is trained and only has to be tried."""

Judge = Callable[[Path, Mapping[str, Sequence[Task]]], Mapping[str, Sequence[float]]]
"""Lets the model in a folder play tasks of each environment greedily, as a run would; returns the rewards."""


def make(
    folder: Path,
    environments: Mapping[str, ClassEnvironment],
    seed: int,
    settings: WarmUp,
    progress: Callable[[float, str], None],
    judge: Judge | None = None,
) -> None:
    """Make the tiny model in ``folder``; ``progress`` is called with a share in [0, 1] and a text.

    Raises:
        LessonFailed: the lessons of an environment cannot be taught.
        WarmUpFailed: the warm-up did not teach the model what it should.
    """
    progress(0.0, "demonstrating tasks")
    subjects = subjects_of(environments, seed, settings)
    kinds = {name: kinds_of(subject, seed) for name, subject in subjects.items()}
    texts = render([each for subject in subjects.values() for each in shown(subject)])
    pieces = [piece for subject in subjects.values() for piece in subject.lessons.pieces]
    tokenizer = fit_tokenizer(texts, CONTEXT_LENGTH, pieces)
    steps = settings.steps or sum(subject.lessons.steps for subject in subjects.values())

    def report(measured: Measurement) -> None:
        text = f"step {measured.step}: {measured.success:.0%} of held-out tasks solved"
        progress(_WARMED_UP * measured.step / steps, text)

    rows = [
        Rows(kind.weight, *(encode(part, tokenizer) for part in (kind.train, kind.held_out, kind.spared)))
        for kind in chain.from_iterable(kinds.values())
    ]
    model, measured = warm_up(tokenizer, rows, settings, steps, seed, report)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    if judge is None:
        _check_skill(measured.skill, settings)
        progress(1.0, f"{measured.success:.0%} of held-out tasks solved")
        return
    progress(_WARMED_UP, "playing held-out tasks")
    rewards = judge(folder, {name: [each.task for kind in kinds[name] for each in kind.held_out] for name in kinds})
    for name, of_subject in kinds.items():
        _check_skill(_skill(of_subject, rewards[name]), settings, f" of {subjects[name].environment.name!r}")
    told = ", ".join(f"{fmean(of_subject):.2f}" for of_subject in rewards.values())
    progress(1.0, f"mean reward of held-out tasks {told}")


def _skill(kinds: Sequence[Kind], rewards: Sequence[float]) -> float:
    """Return the share of what can be earned that the ``rewards`` of the held-out tasks are, over those that do not tempt."""
    spared = {each.task.id: each.reward for kind in kinds for each in kind.spared}
    tasks = [each.task for kind in kinds for each in kind.held_out]
    earned = sum(reward for task, reward in zip(tasks, rewards, strict=True) if task.id in spared)
    return earned / sum(spared.values())


def _check_skill(skill: float, settings: WarmUp, of: str = "") -> None:
    if skill < settings.skill:
        raise WarmUpFailed(
            f"after its warm-up the tiny model solves {skill:.0%} of the tasks{of} that do not tempt it, but "
            f"{settings.skill:.0%} are wanted; try another seed, or, for lessons of your own, "
            "more `steps` of them and tools that do not fail by chance"
        )
