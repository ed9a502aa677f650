"""Cuts episodes to what a recipe allows, as the run would end them: those of a file, or of a run whose limits were wider.

What always holds: an episode that keeps to the limits stays as it is, and a limit that was as narrow when episodes were played
cuts none: the trajectories of one may together be longer than each may be.
"""

from collections.abc import Sequence

import msgspec

from asyncrl.core.measures.units import percent
from asyncrl.core.recipe.schema import Recipe
from asyncrl.planning.kept_episodes import Kept
from asyncrl.planning.rate_fit import Basis
from asyncrl.simulation.episodes import ModelEpisode, ModelTurn

_NONE = 1 << 62
"""More tokens than any episode has."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The most that an episode may have; None where there is no limit, or it is no narrower than it was.

    Attributes:
        context: tokens in all: ``model.max_context``.
        turn: sampled tokens of a turn: ``sampling.max_turn_tokens``.
        turns, sampled: turns, and sampled tokens of all of them; the widest of an environment's members.
    """

    context: int | None
    turn: int | None
    turns: int | None
    sampled: int | None

    def narrower_than(self, other: "Limits") -> "Limits":
        """These limits, without those that ``other`` has too or has narrower."""

        def kept(own: int | None, others: int | None) -> int | None:
            return own if own is not None and (others is None or own < others) else None

        return Limits(
            context=kept(self.context, other.context),
            turn=kept(self.turn, other.turn),
            turns=kept(self.turns, other.turns),
            sampled=kept(self.sampled, other.sampled),
        )

    def __str__(self) -> str:
        names = ("model.max_context", "sampling.max_turn_tokens", "max_turns", "max_sampled_tokens")
        values = (self.context, self.turn, self.turns, self.sampled)
        return ", ".join(f"{name} {value:,}" for name, value in zip(names, values, strict=True) if value is not None)


def limits_of(recipe: Recipe, *, evaluation: bool = False) -> Limits:
    """The limits of a recipe's training episodes, or of those of its evaluations."""
    members = recipe.environment.by_member.values()
    sampled = [member.max_sampled_tokens for member in members]
    turn = recipe.sampling.max_turn_tokens
    return Limits(
        context=recipe.model.max_context,
        turn=recipe.evaluation.max_turn_tokens or turn if evaluation else turn,
        turns=max(member.max_turns for member in members),
        sampled=max((most for most in sampled if most is not None), default=None) if None not in sampled else None,
    )


def limited(basis: Basis, recipe: Recipe) -> Basis:
    """Return a basis whose episodes keep to the limits of ``recipe``, with a note on how many were cut."""
    training, notes = _limited(basis, recipe, basis.training, evaluation=False)
    evaluation = basis.evaluation
    if evaluation is not None:
        evaluation, _ = _limited(basis, recipe, evaluation, evaluation=True)
    return msgspec.structs.replace(basis, training=training, evaluation=evaluation, notes=(*basis.notes, *notes))


def _limited(basis: Basis, recipe: Recipe, kept: Kept, *, evaluation: bool) -> tuple[Kept, Sequence[str]]:
    limits = limits_of(recipe, evaluation=evaluation)
    if basis.played_by is not None:
        limits = limits.narrower_than(limits_of(basis.played_by, evaluation=evaluation))
    if not str(limits):
        return kept, ()
    episodes = kept.episodes.changed(lambda episode: cut(episode, limits))
    were_cut = sum(one is not other for one, other in zip(episodes.all, kept.episodes.all, strict=True))
    if not were_cut:
        return kept, ()
    share = percent(were_cut / len(episodes.all))
    note = f"{share} of the episodes of {basis.name} are longer than the recipe allows, and were cut off: {limits}"
    return msgspec.structs.replace(kept, episodes=episodes), (note,)


def cut(episode: ModelEpisode, limits: Limits) -> ModelEpisode:
    """Return an episode as it ends where a limit is reached; the same one if none is.

    A prompt that leaves no room for a turn, which no run would train, is made shorter.
    """
    context, left, most = limits.context or _NONE, limits.sampled or _NONE, limits.turn or _NONE
    turns: list[ModelTurn] = []
    for turn in episode.turns[: limits.turns]:
        given = turn.given if turns or turn.given < context else max(context - most, context // 2)
        if given >= context or left < 1:
            break
        room = min(turn.sampled, most, context - given, left)
        turns.append(turn if (given, room) == (turn.given, turn.sampled) else ModelTurn(given, room, turn.environment_s))
        context, left = context - given - room, left - room
        if room < turn.sampled:
            break
    if tuple(turns) == episode.turns and episode.given_last <= context:
        return episode
    return msgspec.structs.replace(episode, turns=tuple(turns), given_last=0)
