"""Chooses the episodes that a report shows token by token, and packs them for the page's script.

What always holds: all text is harmless to show (:func:`asyncrl.episodes.visible.visible`); the numbers of tokens are bounded, so
that the page stays small whatever the run kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pyarrow as pa

from asyncrl.episodes.measures import Measure
from asyncrl.episodes.read_trajectory import Branch, ReadTrajectory, mean
from asyncrl.episodes.reader import Choice, EpisodeReader
from asyncrl.episodes.schema import Kind, TokenFate
from asyncrl.episodes.visible import visible
from asyncrl.run.report.run_record import RunRecord
from asyncrl.run.report.trained_steps import TrainedStep, trained_steps
from asyncrl.run.views.episode_view import FATE_WORDS, facts, played_for

if TYPE_CHECKING:
    from tokenizers import Tokenizer

EPISODES_EACH = 8
"""How many episodes are shown of those at the top of each order."""
REPORT_TOKENS = 40_000
"""About how many tokens a report shows in all."""
EPISODE_TOKENS = 4_000
"""How many tokens of one episode are shown at most."""

Runs = list[list[float]]
"""Equal values in a row: pairs of a value and how often it follows itself."""


class ShownTurn(msgspec.Struct, frozen=True, array_like=True):
    """A turn, as the page's script takes it: tokens ``[start, end)``, reward, a line of facts, a line for each call."""

    start: int
    end: int
    reward: float
    about: str
    calls: list[tuple[str, bool]]


class ShownEpisode(msgspec.Struct, frozen=True):
    """An episode, as the page's script takes it. What is of sampled tokens alone has an entry for each of them, in order.

    Attributes:
        step: the training step that trained it; None for one of an evaluation.
        texts: for each token, the number of its text in :attr:`Shown.texts`.
        fates: codes in the order of :class:`TokenFate`.
        engine, learner: log-probabilities of the sampled tokens; no learner's if no loss saw them.
        cut: tokens that are not shown.
        shared, parent: how many of its first tokens are a copy of those of another trajectory of its episode, and which that is.
    """

    run: int
    step: int | None
    title: str
    facts: list[tuple[str, str]]
    reward: float | None
    gap: float | None
    staleness: float | None
    length: int
    version: int
    turns: list[ShownTurn]
    texts: list[int]
    versions: Runs
    fates: Runs
    engine: list[float]
    learner: list[float] | None
    advantages: Runs | None
    weights: Runs | None
    cut: int
    shared: int
    parent: int | None


class Shown(msgspec.Struct, frozen=True):
    """All episodes of a report, the texts that their tokens have, and what is told of the training steps."""

    episodes: list[ShownEpisode]
    steps: list[TrainedStep]
    texts: list[str]
    fates: list[str]
    without_text: bool


class _Texts:
    """Numbers texts in the order in which they are first seen."""

    def __init__(self) -> None:
        self.all: dict[str, int] = {}

    def number(self, text: str) -> int:
        return self.all.setdefault(text, len(self.all))


def shown_episodes(runs: Sequence[RunRecord]) -> Shown:
    """Choose and pack episodes of all runs: the worst, the best, the stalest, the longest, and those of the largest gap."""
    texts, shown, steps, without_text = _Texts(), list[ShownEpisode](), list[TrainedStep](), False
    for number, run in enumerate(runs):
        if run.episodes is None:
            continue
        tokenizer = _tokenizer(run)
        without_text |= tokenizer is None
        steps += trained_steps(run.episodes, number, tokenizer)
        left = REPORT_TOKENS // len(runs)
        for episode in run.episodes.read(_chosen(run.episodes)):
            tokens = min(len(episode.token_ids), EPISODE_TOKENS)
            if tokens <= left:
                left -= tokens
                shown.append(_packed(episode, run.episodes.tree(episode), number, tokenizer, texts))
    return Shown(shown, steps, list(texts.all), [FATE_WORDS[fate] for fate in TokenFate], without_text)


def _chosen(reader: EpisodeReader) -> pa.Table:
    """Return the places of the episodes at the top of each order: the first of each, then the second of each, and so on."""
    trained = Choice(kind=Kind.TRAIN)
    orders = [reader.places(trained, by, EPISODES_EACH) for by in Measure]
    by_reward = reader.places(trained, Measure.REWARD)
    orders.append(by_reward.slice(max(0, len(by_reward) - EPISODES_EACH))[::-1])
    if versions := reader.steps(Kind.EVALUATION):
        orders.append(reader.places(Choice(kind=Kind.EVALUATION, step=versions[-1]), Measure.REWARD, EPISODES_EACH))
    lines = [zip(order["file"].to_pylist(), order["row"].to_pylist(), strict=True) for order in orders]
    once = dict.fromkeys(place for places in zip_longest(*lines) for place in places if place is not None)
    return pa.table({"file": [file for file, _ in once], "row": [row for _, row in once]})


def _tokenizer(run: RunRecord) -> Tokenizer | None:
    """Return the tokenizer of the run's own model, or of the model that it began with; None if neither is here."""
    from tokenizers import Tokenizer

    for folder in (run.folder.model, Path(run.recipe.get("model.path", ""))):
        file = folder / "tokenizer.json"
        try:
            if file.is_file():
                return Tokenizer.from_file(str(file))
        except Exception:  # noqa: BLE001 - tokenizers raises nothing more exact for a file that it cannot read
            continue
    return None


def _packed(
    episode: ReadTrajectory, tree: Sequence[Branch], run: int, tokenizer: Tokenizer | None, texts: _Texts
) -> ShownEpisode:
    tokens = min(len(episode.token_ids), EPISODE_TOKENS)
    sampled = [position for position in episode.sampled() if position < tokens]
    pieces = list(_pieces(episode, tokenizer))[:tokens]

    def of_sampled(values: list[float] | None) -> list[float] | None:
        return None if values is None else [_short(values[position], 3) for position in sampled]

    codes = {fate: code for code, fate in enumerate(TokenFate)}
    advantages, weights = of_sampled(episode.advantages), of_sampled(episode.weights)
    return ShownEpisode(
        run=run,
        step=episode.step,
        title=visible(f"{played_for(episode)} · {episode.task_id}{_which(episode)}"),
        facts=[(name, visible(text)) for name, text in facts(episode, tree)],
        reward=_finite(episode.reward),
        gap=_finite(mean(episode.gaps())),
        staleness=_finite(mean(episode.staleness())),
        length=len(episode.token_ids),
        version=episode.version,
        turns=[_turn(turn_number, episode) for turn_number in range(len(episode.turns))],
        texts=[texts.number(visible(piece)) for piece in pieces],
        versions=_runs(episode.versions[:tokens]),
        fates=_runs([codes[fate] for fate in episode.fates[:tokens]]),
        engine=of_sampled(episode.logprobs) or [],
        learner=of_sampled(episode.learner_logprobs),
        advantages=None if advantages is None else _runs(advantages),
        weights=None if weights is None else _runs(weights),
        cut=len(episode.token_ids) - tokens,
        shared=episode.shared or 0,
        parent=episode.parent,
    )


def _which(trajectory: ReadTrajectory) -> str:
    """Name the trajectory among several of its episode."""
    if (trajectory.parts or 1) == 1:
        return ""
    return f" · trajectory {trajectory.part} of {trajectory.parts}{f' ({trajectory.role})' if trajectory.role else ''}"


def _turn(number: int, episode: ReadTrajectory) -> ShownTurn:
    turn = episode.turns[number]
    about = f"turn {number + 1}: generated in {turn.generating_s:.2f} s, environment {turn.environment_s:.2f} s"
    calls = [
        (
            visible(f"{c.tool or '(unreadable)'}, {c.seconds:.2f} s, {c.outcome}{': ' if c.problem else ''}{c.problem}"),
            c.outcome == "ok",
        )
        for c in turn.calls
    ]
    return ShownTurn(turn.start, turn.end, turn.reward, about, calls)


def _pieces(episode: ReadTrajectory, tokenizer: Tokenizer | None) -> Iterator[str]:
    """Yield a text for each token. Of a character that several tokens make up, all but the last of them have none."""
    if tokenizer is None:
        yield from (f"⟨{token}⟩" for token in episode.token_ids)
        return
    from tokenizers.decoders import DecodeStream

    borders = {turn.start for turn in episode.turns} | {turn.end for turn in episode.turns}
    stream = DecodeStream(skip_special_tokens=False)
    for position, token in enumerate(episode.token_ids):
        if position in borders:
            stream = DecodeStream(skip_special_tokens=False)
        yield stream.step(tokenizer, token) or ""


def _runs(values: Sequence[float]) -> Runs:
    return [[value, sum(1 for _ in several)] for value, several in groupby(values)]


def _short(value: float, digits: int) -> float:
    return round(value, digits) if math.isfinite(value) else 0.0


def _finite(value: float) -> float | None:
    return round(value, 5) if math.isfinite(value) else None
