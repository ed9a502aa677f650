"""Makes the tiny model: demonstrations, tokenizer, supervised warm-up, Hugging Face folder, and a check that it plays.

It has a tokenizer of its own, fitted to its lessons, or one that others have made (:class:`Voice`).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Protocol

from asyncrl.core.recipe.environment import ClassEnvironmentConfig
from asyncrl.core.task import Task
from asyncrl.envs.lessons.demonstrations import Demonstration
from asyncrl.learners.tiny.conversations import Example, encode
from asyncrl.learners.tiny.few_entries import LARGE, FewEntries
from asyncrl.learners.tiny.material import Kind, demonstrations_of, kinds_of, subjects_of
from asyncrl.learners.tiny.settings import WarmUp
from asyncrl.learners.tiny.tokenizer_alone import tokenizer_for
from asyncrl.learners.tiny.warmup import Measurement, Rows, WarmUpFailed, config_of, warm_up

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

TOLD_EVERY_S = 1.0
"""Seconds between two looks at how many demonstrations there are."""
_WARMED_UP = 0.95
"""Progress when the model is trained and only has to be tried."""

Judge = Callable[[Path, Mapping[str, Sequence[Task]]], Mapping[str, Sequence[float]]]
"""Lets the model in a folder play tasks of each environment greedily, as a run would; returns the rewards."""


class Voice(Protocol):
    """What demonstrations are told in: a tokenizer, and how it writes them.

    Attributes:
        ends: ids of the tokens that end a turn, the usual one first.
    """

    tokenizer: "PreTrainedTokenizerBase"
    ends: tuple[int, ...]

    def rows(self, demonstrations: Sequence[Demonstration]) -> list[Example]:
        """Return each demonstration as tokens, with the assistant's marked."""
        ...


class _OwnVoice:
    """A tokenizer that is fitted to the lessons, and the tiny model's own chat template."""

    def __init__(self, tokenizer: "PreTrainedTokenizerFast") -> None:
        self._tokenizer = tokenizer
        self.tokenizer: PreTrainedTokenizerBase = tokenizer
        self.ends: tuple[int, ...] = (int(tokenizer.eos_token_id),)

    def rows(self, demonstrations: Sequence[Demonstration]) -> list[Example]:
        return encode(demonstrations, self._tokenizer)


def make(
    folder: Path,
    environments: Mapping[str, ClassEnvironmentConfig],
    seed: int,
    settings: WarmUp,
    progress: Callable[[float, str], None],
    judge: Judge | None = None,
    voice: Voice | None = None,
) -> None:
    """Make the tiny model in ``folder``; ``progress`` is called with a share in [0, 1] and a text.

    Args:
        voice: what its lessons are told in; by default a tokenizer that is fitted to them.

    Raises:
        LessonFailed: the lessons of an environment cannot be taught.
        WarmUpFailed: the warm-up did not teach the model what it should.
    """
    progress(0.0, "making tasks to demonstrate")
    subjects = subjects_of(environments, seed, settings)
    wanted = sum(demonstrations_of(subject, to_fit=voice is None) for subject in subjects.values())
    played = _Demonstrated(wanted, lambda text: progress(0.0, text))
    kinds = {name: kinds_of(subject, seed, played) for name, subject in subjects.items()}
    voice = voice or _OwnVoice(tokenizer_for(subjects, played))
    steps = settings.steps or sum(subject.lessons.steps for subject in subjects.values())

    def report(measured: Measurement) -> None:
        text = f"step {measured.step}: {measured.success:.0%} of held-out tasks solved"
        progress(_WARMED_UP * measured.step / steps, text)

    rows = [
        Rows(kind.weight, *(voice.rows(part) for part in (kind.train, kind.held_out, kind.spared)))
        for kind in chain.from_iterable(kinds.values())
    ]
    config = config_of(voice.tokenizer, settings.size, voice.ends)
    if config.vocab_size <= LARGE:
        model, measured = warm_up(config, rows, settings, steps, seed, report)
    else:
        few = FewEntries(config, [row for each in rows for row in (*each.train, *each.held_out)])
        short = [
            Rows(each.weight, *([few.shortened(row) for row in part] for part in (each.train, each.held_out, each.spared)))
            for each in rows
        ]
        model, measured = warm_up(few.config, short, settings, steps, seed, report, few.weights)
        model = few.whole_model(model)
    model.save_pretrained(folder)
    voice.tokenizer.save_pretrained(folder)
    if judge is None:
        _check_skill(measured.skill, settings)
        progress(1.0, f"{measured.success:.0%} of held-out tasks solved")
        return
    progress(_WARMED_UP, "playing held-out tasks")
    rewards = judge(folder, {name: [each.task for kind in kinds[name] for each in kind.held_out] for name in kinds})
    for name, of_subject in kinds.items():
        _check_skill(_skill(of_subject, rewards[name]), settings, f" of {subjects[name].environment.name!r}")
    means = ", ".join(f"{fmean(of_subject):.2f}" for of_subject in rewards.values())
    progress(1.0, f"mean reward of held-out tasks {means}")


class _Demonstrated:
    """Counts demonstrations, and tells the user how many there are: with slow tools they take most of the time."""

    def __init__(self, wanted: int, tell: Callable[[str], None]) -> None:
        self._wanted, self._tell = wanted, tell
        self._played = 0
        self._began = self._told = time.monotonic()

    def __call__(self) -> None:
        self._played += 1
        now = time.monotonic()
        if now - self._told >= TOLD_EVERY_S or self._played == self._wanted:
            self._told, seconds = now, now - self._began
            left = seconds / self._played * (self._wanted - self._played)
            time_left = f", about {left:,.0f} s left" if left >= TOLD_EVERY_S else ""
            self._tell(f"{self._played:,} of {self._wanted:,} tasks demonstrated in {seconds:,.0f} s{time_left}")


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
            "more `steps` of them and tools that seldom fail by chance"
        )
