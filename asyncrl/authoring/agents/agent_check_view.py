"""Shows what a check of agents found, as text that a person reads and can copy."""

from collections.abc import Iterator, Sequence

from rich.text import Text

from asyncrl.authoring.agents.agent_check import AgentChecked, RoleFigures
from asyncrl.authoring.check_view import finding_view, verdict_of
from asyncrl.core.text import pluralize


def agent_check_view(checked: Sequence[AgentChecked]) -> Iterator[Text]:
    """The figures of each agent, and what was found."""
    for one in checked:
        yield verdict_of(one.environment, one.findings)
        ends = ", ".join(f"{count} {reason}" for reason, count in one.stop_reasons.items())
        rewards = ", ".join(f"{each:g}" for each in dict.fromkeys(one.rewards))
        yield Text(
            f"  {pluralize(one.episodes, 'episode')} ({ends or 'none came to its end'}); rewards seen: {rewards or 'none'}"
        )
        by_path = ", ".join(f"{count} {path}" for path, count in one.protocols.items())
        yield Text(f"  requests: {by_path or 'none'}")
        for name, figures in one.roles.items():
            yield Text(f"  role {name}: {_role(figures)}")
        if one.continued is not None:
            yield Text(f"  {one.continued:.0%} of the turns that follow another one extend its trajectory")
        if one.cost is not None:
            yield Text(f"  cost: the learner computes {one.cost:.1f} tokens for each that it trains, with these answers")
        for what, count in one.asked_in_vain.items():
            yield Text(f"  {what}: {pluralize(count, 'request')}")
        yield from map(finding_view, one.findings)


def _role(figures: RoleFigures) -> str:
    begun = ", ".join(f"{count} {beginning}" for beginning, count in figures.begun.items())
    turns = (
        f"{pluralize(figures.requests, 'turn')}: {figures.extended} extend a trajectory, {sum(figures.begun.values())} begin one"
    )
    tokens = f"{figures.sampled_tokens:,} sampled tokens in {figures.learner_tokens:,}"
    return f"{turns} ({begun}); {tokens}{'' if figures.trained else ', not trained'}"
