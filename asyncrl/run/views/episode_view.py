"""Shows one kept episode to the user: what it was, what was said, what its tools did, and what became of its tokens."""

import math
from collections.abc import Iterator, Mapping, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from asyncrl.core.measures.units import duration
from asyncrl.core.messages import CallOutcome
from asyncrl.core.trajectory import StartReason
from asyncrl.episodes.read_trajectory import Branch, ReadCall, ReadTrajectory, TurnRecord, mean
from asyncrl.episodes.schema import Kind, TokenFate
from asyncrl.episodes.visible import visible

FATE_WORDS = {
    TokenFate.GIVEN: "given",
    TokenFate.TRAINED: "trained",
    TokenFate.STALE: "too stale",
    TokenFate.MASKED: "masked by their weight",
    TokenFate.REJECTED: "rejected",
    TokenFate.NOT_TRAINED: "sampled, not trained",
}


def episode_view(episode: ReadTrajectory, place: str, tree: Sequence[Branch]) -> RenderableType:
    """Return the page of an episode, or of one trajectory of several.

    Args:
        place: where it stands among the others, e.g. ``3 of 20``.
        tree: the trajectories of its episode, if there are several.
    """
    what = "Trajectory " if tree else "Episode "
    parts: list[RenderableType] = [
        Rule(Text.assemble((what, "bold"), (place, "bold"), " kept · ", played_for(episode)), align="left", style="dim"),
        _header(episode, tree),
        *_block("Prompt", episode.prompt),
    ]
    named = episode.turn_rewards or ({},) * len(episode.turns)
    for number, (turn, rewards) in enumerate(zip(episode.turns, named, strict=True), 1):
        parts += _turn(number, turn, rewards, is_last=number == len(episode.turns))
    return Group(*parts)


def played_for(episode: ReadTrajectory) -> str:
    """Return ``training step 12`` or ``evaluation of version 20``."""
    return f"training step {episode.step}" if episode.kind is Kind.TRAIN else f"evaluation of version {episode.version}"


def _header(episode: ReadTrajectory, tree: Sequence[Branch]) -> Table:
    table = Table(show_header=False, box=box.SIMPLE_HEAD, padding=(0, 1))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in facts(episode, tree):
        table.add_row(name, Text(visible(value), "bold" if name == "reward" else ""))
    return table


def facts(episode: ReadTrajectory, tree: Sequence[Branch]) -> Iterator[tuple[str, str]]:
    """Yield what is to be known of a trajectory and its episode, each with its name. The values hold text of tasks and
    environments as it is.

    Args:
        tree: the trajectories of the episode, if there are several.
    """
    task = episode.task_id if episode.source is None else f"{episode.task_id} of source {episode.source}"
    yield "task", f"{task}, environment {episode.environment}"
    if episode.kind is Kind.TRAIN:
        attempt = f", attempt {episode.attempt + 1}" if episode.attempt else ""
        yield "group", f"{episode.group_id}, sample {episode.sample_index}{attempt}"
    yield "reward", f"{episode.reward:g}"
    if episode.role_rewards:
        yield "reward by role", ", ".join(f"{role} {reward:g}" for role, reward in episode.role_rewards.items())
    if tree:
        yield "trajectories", "\n".join(_branches(tree, episode.part))
    if episode.metrics:
        yield "metrics", ", ".join(f"{name} {_short(value)}" for name, value in episode.metrics.items())
    yield "stop reason", episode.stop_reason
    yield "sampled", _sampled(episode)
    yield "seconds", _seconds(episode)
    yield "tokens", _tokens(episode)
    yield from _training(episode)


def _branches(tree: Sequence[Branch], shown: int | None, parent: int | None = None, depth: int = 0) -> Iterator[str]:
    """Yield a line for each trajectory, below the one that it branched off; the one that is shown has an arrow."""
    for branch in tree:
        if branch.parent != parent:
            continue
        begun = f", the first {branch.shared:,} those of {parent}" if branch.shared else ""
        why = "" if branch.why is StartReason.FIRST else f"; begun because of {branch.why.value.replace('_', ' ')}"
        fate = "" if branch.trained else "; not trained"
        arrow = "->" if branch.part == shown else "  "
        name = f"{branch.part} {branch.role}".rstrip()
        yield f"{arrow} {'  ' * depth}{name}: {branch.tokens:,} tokens{begun}{why}{fate}"
        yield from _branches(tree, shown, branch.part, depth + 1)


def _short(value: float) -> str:
    return f"{value:g}" if value.is_integer() else f"{value:.4g}"


def _sampled(episode: ReadTrajectory) -> str:
    staleness = episode.staleness()
    at = f"temperature {episode.temperature:g}{_truncation(episode)}"
    if not staleness:
        return f"nothing, at {at}"
    first, last = episode.version - max(staleness), episode.version - min(staleness)
    by = f"by version {first}" if first == last else f"by versions {first} to {last}"
    if episode.kind is Kind.EVALUATION:
        return f"{by}, at {at}"
    over = "; those too stale entered no loss" if TokenFate.STALE in episode.fate_counts() else ""
    stale = f"staleness {mean(staleness):.2g} (at most {max(staleness)}{over})"
    return f"{by}, at {at}; trained into {episode.version + 1}, {stale}"


def _truncation(episode: ReadTrajectory) -> str:
    """How it was sampled, besides the temperature, e.g. ``, top-p 0.9``; the columns are empty in files of earlier releases."""
    if episode.temperature == 0:
        return ""
    settings = (
        (f"top-p {episode.top_p:g}" if episode.top_p is not None and episode.top_p < 1 else ""),
        (f"top-k {episode.top_k}" if episode.top_k else ""),
        (f"min-p {episode.min_p:g}" if episode.min_p else ""),
    )
    return "".join(f", {each}" for each in settings if each)


def _seconds(episode: ReadTrajectory) -> str:
    parts = {
        "queued": episode.queued_s,
        "reset": episode.reset_s,
        "generating": episode.generating_s,
        "environment": episode.environment_s,
        "scoring": episode.scoring_s,
    }
    parts_text = ", ".join(f"{name} {duration(seconds)}" for name, seconds in parts.items() if seconds >= 0.05)
    return f"{duration(episode.seconds)}{f' ({parts_text})' if parts_text else ''}, from {episode.began:%Y-%m-%d %H:%M:%S} UTC"


def _tokens(episode: ReadTrajectory) -> str:
    fates = (f"{count:,} {FATE_WORDS[fate]}" for fate, count in episode.fate_counts().items())
    copied = f"; the first {episode.shared:,} are a copy of those of trajectory {episode.parent}" if episode.shared else ""
    return f"{len(episode.token_ids):,}: {', '.join(fates)}{copied}"


def _training(episode: ReadTrajectory) -> Iterator[tuple[str, str]]:
    """The fates of the sampled tokens in a loss; nothing if no loss saw them."""
    gaps, trained = episode.gaps(), episode.trained_tokens()
    if gaps:
        stale = "; of older versions' tokens it includes what training changed since" if max(episode.staleness()) > 0 else ""
        yield "engine-learner gap", f"mean {mean(gaps):.3g} nats, at most {max(gaps):.3g}{stale}"
    for name, values in (("advantage", episode.advantages), ("importance weight", episode.weights)):
        if values is not None and trained:
            kept = [values[position] for position in trained]
            low, high = min(kept), max(kept)
            same = math.isclose(low, high, abs_tol=5e-4)
            yield name, f"{low:.3g}" if same else f"mean {mean(kept):.3g}, {low:.3g} to {high:.3g}"


def _turn(number: int, turn: TurnRecord, rewards: Mapping[str, float], is_last: bool) -> Iterator[RenderableType]:
    style = "bold green" if turn.reward > 0 else "bold red" if turn.reward < 0 else "dim"
    named = ", ".join(f"{visible(name)} {value:+g}" if value else f"{visible(name)} 0" for name, value in rewards.items())
    title = Text.assemble(
        (f"Turn {number}", "bold"),
        (f"  {turn.end - turn.start:,} tokens in {_brief(turn.generating_s)}", "dim"),
        *([(f"  reward {turn.reward:+g}" if turn.reward else "  reward 0", style)] if turn.reward or is_last else []),
        (f" ({named})" if named else "", "dim"),
    )
    yield from _block(title, turn.text, "cyan", below=0 if turn.calls else 1)
    for call in turn.calls:
        yield Padding(_call(call), (0, 2), expand=False)
    if turn.answer:
        yield from _block(Text(f"Answer after {_brief(turn.environment_s)}", "dim"), turn.answer)


def _call(call: ReadCall) -> Text:
    good = call.outcome is CallOutcome.OK
    tool = visible(call.tool) or "(unreadable)"
    line = Text.assemble("-> ", (tool, "bold"), f" {_brief(call.seconds)} ", (call.outcome, "green" if good else "red"))
    return line if good else line.append(f": {visible(call.problem)}")


def _brief(seconds: float) -> str:
    """Return a time in milliseconds where it is short, as those of tools often are."""
    return f"{seconds * 1000:.0f} ms" if seconds < 0.1 else duration(seconds)


def _block(title: str | Text, text: str, style: str = "", below: int = 1) -> Iterator[RenderableType]:
    yield title if isinstance(title, Text) else Text(title, "bold")
    yield Padding(Text(visible(text).strip("\n"), style, overflow="fold"), (0, 2, below, 2), expand=False)
