"""The tokenizer of a tiny model, from the lessons of its environments: made with the model, or alone, which needs no torch."""

from collections.abc import Callable, Mapping

from transformers import PreTrainedTokenizerFast

from asyncrl.core.recipe.environment import ClassEnvironmentConfig
from asyncrl.learners.tiny.conversations import render
from asyncrl.learners.tiny.material import Subject, shown, subjects_of
from asyncrl.learners.tiny.settings import CONTEXT_LENGTH, WarmUp
from asyncrl.learners.tiny.tokenizer import fit_tokenizer


def tiny_tokenizer(environments: Mapping[str, ClassEnvironmentConfig], seed: int) -> PreTrainedTokenizerFast:
    """Make the tokenizer that the tiny model of these environments will have.

    Raises:
        RecipeError: an environment, or its options, are wrong.
        LessonFailed: an environment has no lessons.
    """
    return tokenizer_for(subjects_of(environments, seed, WarmUp()), lambda: None)


def tokenizer_for(subjects: Mapping[str, Subject], played: Callable[[], None]) -> PreTrainedTokenizerFast:
    """Fit the tokenizer to demonstrations; ``played`` is called for each that is there."""
    texts = render([each for subject in subjects.values() for each in shown(subject, played)])
    return fit_tokenizer(texts, CONTEXT_LENGTH, [piece for subject in subjects.values() for piece in subject.lessons.pieces])
