"""``asyncrl agent check``: plays episodes of a recipe's agents against scripted answers, through the real gateway.

What always holds: tokenizer, template, parsers, limits and environments are the recipe's, and only the answers are not the
model's; so what extends a token stream here does so in a run, as far as the agent does the same.
"""

import asyncio
import os
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import msgspec

from asyncrl.authoring.agents.conversations import Beginning, Begun, Conversations
from asyncrl.authoring.agents.scripted_policy import Script, ScriptedPolicy
from asyncrl.authoring.findings import Finding, Findings, Severity
from asyncrl.authoring.subject import Subject, tasks_of
from asyncrl.core.episode import Episode, named_rewards, with_trained_roles
from asyncrl.core.errors import EnvironmentBroken, EnvironmentLost, PromptTooLong, RecipeError
from asyncrl.core.ids import GroupId
from asyncrl.core.recipe.algorithm import TurnCreditConfig
from asyncrl.core.recipe.environment import AgentEnvironmentConfig, member_place
from asyncrl.core.recipe.schema import Recipe
from asyncrl.core.text import pluralize
from asyncrl.core.trajectory import StopReason
from asyncrl.envs.hosting.worker_environments import WorkerEnvironments
from asyncrl.envs.load import check_members, load_members
from asyncrl.envs.secrets import read_secrets
from asyncrl.generators.chat_format import ChatFormat
from asyncrl.generators.episode import EpisodeLimits, EpisodeName, EpisodeTools, run_episode
from asyncrl.generators.gateway.agent_play import agent_episode
from asyncrl.generators.gateway.episode import GatewayTurn
from asyncrl.generators.gateway.messages import ChatMessage
from asyncrl.generators.gateway.observer import Placed
from asyncrl.generators.gateway.problems import Problem
from asyncrl.generators.gateway.protocols import Protocols
from asyncrl.generators.gateway.server import Gateway
from asyncrl.generators.tool_calls.reader import ToolCallReader
from asyncrl.generators.tool_calls.reasoning import Reasoning
from asyncrl.generators.vllm.engine_arguments import EngineSettings, engine_arguments
from asyncrl.run.models.hub import tokenizer_folder
from asyncrl.run.models.model_shape import TINY, check_sizes, read_shape
from asyncrl.run.pool.gateway_host import gateway_host
from asyncrl.run.tiny.lessons import players_of

CLOSE_S = 10.0
_NOT_FOR_LONG = (StopReason.MAX_TURNS, StopReason.MAX_TRAJECTORIES, StopReason.EPISODE_TIMEOUT, StopReason.SAMPLED_TOKENS)


class RoleFigures(msgspec.Struct):
    """What the requests of one role came to.

    Attributes:
        requests: how many turns it asked for.
        extended: how many of them extended a token stream.
        begun: how many began one, by why.
        trajectories: token streams.
        trained: whether the recipe trains the role.
        sampled_tokens: tokens that the policy sampled for it.
        learner_tokens: tokens of its token streams, which the learner computes.
    """

    requests: int = 0
    extended: int = 0
    begun: dict[Beginning, int] = {}
    trajectories: int = 0
    trained: bool = True
    sampled_tokens: int = 0
    learner_tokens: int = 0


class AgentChecked(msgspec.Struct):
    """What a few episodes of an agent showed.

    Attributes:
        environment: the agent's place in the recipe.
        episodes: how many came to their end.
        rewards: those that they got.
        stop_reasons: why they ended.
        protocols: requests by the protocol's path.
        roles: by name.
        asked_in_vain: what requests asked for and did not get, such as ``replaced temperature``, with their number.
        cost: tokens that the learner computes for each that it trains; None if it trains none.
        findings: errors first.
    """

    environment: str
    episodes: int
    rewards: list[float]
    stop_reasons: dict[StopReason, int]
    protocols: dict[str, int]
    roles: dict[str, RoleFigures]
    asked_in_vain: dict[str, int]
    cost: float | None
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> int:
        """How many findings are errors."""
        return sum(each.severity is Severity.ERROR for each in self.findings)

    @property
    def continued(self) -> float | None:
        """The share of turns that extend a token stream, of those that follow another turn; None if none does."""
        first = sum(figures.begun.get(Beginning.CONVERSATION, 0) for figures in self.roles.values())
        later = sum(figures.requests for figures in self.roles.values()) - first
        return sum(figures.extended for figures in self.roles.values()) / later if later else None


class _Requests:
    """Hears of all requests of some episodes."""

    def __init__(self) -> None:
        self.protocols: Counter[str] = Counter()
        self.roles: defaultdict[str, RoleFigures] = defaultdict(RoleFigures)
        self.begun: Counter[Begun] = Counter()
        self.problems: Counter[str] = Counter()
        self.in_vain: dict[object, Mapping[str, int]] = {}
        self._conversations: defaultdict[object, Conversations] = defaultdict(Conversations)

    def placed(self, placed: Placed) -> None:
        """Count a request, and find out why it begins a stream if it does."""
        role = self.roles[placed.asked.role]
        role.requests += 1
        self.protocols[placed.protocol] += 1
        self.in_vain[placed.episode] = placed.asked_in_vain
        if placed.begins is None:
            role.extended += 1
            return
        begun = self._conversations[placed.episode].begun(placed)
        role.begun[begun.beginning] = role.begun.get(begun.beginning, 0) + 1
        self.begun[begun] += 1

    def finished(self, placed: Placed, message: ChatMessage) -> None:
        """Remember what was answered."""
        self._conversations[placed.episode].finished(placed, message)

    def refused(self, problem: Problem) -> None:
        """Count an error that a client got."""
        self.problems[f"{problem.status}: {problem.text}"] += 1


def check_agents(recipe: Recipe, script: Callable[[], Script], episodes: int, note: Callable[[str], None]) -> list[AgentChecked]:
    """Check each agent of a recipe.

    Args:
        script: makes the script of an agent's episodes.
        episodes: how many of each.
        note: shows the user a line about what is being done.

    Raises:
        RecipeError: the recipe has no agent, or something that it names is not there.
        EnvironmentBroken: what the episodes share cannot be set up.
    """
    members = recipe.environment.by_member
    agents = {name: spec for name, spec in members.items() if isinstance(spec, AgentEnvironmentConfig)}
    if not agents:
        raise RecipeError("environment.kind", "the recipe has no agent", "use `asyncrl env check` for other environments")
    check_members(recipe.environment, os.environ)
    check_sizes(read_shape(recipe.model.path), recipe.model, recipe.learner, recipe.generators.by_pool)
    note("reading the model's tokenizer and template, and importing vLLM")
    with folder_without_weights(recipe) as folder:
        return asyncio.run(_check_all(recipe, agents, folder, script, episodes, note))


async def _check_all(
    recipe: Recipe,
    agents: Mapping[str, AgentEnvironmentConfig],
    folder: str,
    script: Callable[[], Script],
    episodes: int,
    note: Callable[[str], None],
) -> list[AgentChecked]:
    chat = ChatFormat.load(folder, recipe.model)
    protocols = _protocols(recipe, folder, chat)
    environments = WorkerEnvironments(load_members(recipe.environment), read_secrets(recipe.environment, os.environ), "check")
    await environments.start(recipe.deadlines.start)
    try:
        checked = []
        for name in agents:
            note(f"{member_place(name)}: playing {pluralize(episodes, 'episode')}")
            requests = _Requests()
            gateway = Gateway(protocols, chat, gateway_host([agents[name]]), observer=requests)
            await gateway.start(for_sandboxes=bool(agents[name].sandbox))
            try:
                checked.append(await _Check(recipe, name, chat, requests).play(gateway, environments, script(), episodes))
            finally:
                await gateway.close()
        return checked
    finally:
        await environments.close(CLOSE_S)


def _protocols(recipe: Recipe, folder: str, chat: ChatFormat) -> Protocols:
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    from vllm.renderers.hf import HfRenderer

    settings = EngineSettings(recipe.generators, folder, recipe.model.max_context)
    config = engine_arguments(settings).create_engine_config()
    return Protocols(config, HfRenderer, chat, recipe.model.tool_parser, recipe.model.reasoning_parser)


class _Check:
    """Plays the episodes of one agent, and puts together what they showed."""

    def __init__(self, recipe: Recipe, member: str, chat: ChatFormat, requests: _Requests) -> None:
        self._recipe, self._member, self._chat, self._requests = recipe, member, chat, requests
        self._spec = recipe.environment.by_member[member]
        self._subject = Subject(member, self._spec, recipe)
        self._findings = Findings()
        self._place = member_place(member)

    async def play(self, gateway: Gateway, environments: WorkerEnvironments, script: Script, episodes: int) -> AgentChecked:
        """Play, and return what was found."""
        recipe, chat = self._recipe, self._chat
        tasks = tasks_of(self._subject, "train")
        limits = EpisodeLimits.of(recipe, self._member)
        parser = recipe.model.reasoning_parser
        reasoning = None if parser is None else Reasoning(chat, parser)
        policy = ScriptedPolicy(chat, script, _current, thinks=parser is not None)
        reader = ToolCallReader(chat.tokenizer, recipe.model.tool_parser, reasoning)
        tools = EpisodeTools(policy, chat, reader, environments.make, play_agent=partial(agent_episode, gateway))
        played = list[Episode]()
        for number in range(episodes):
            task = tasks[number % len(tasks)]
            try:
                episode = await run_episode(task, EpisodeName(GroupId(number), 0, 0), limits, tools)
            except (EnvironmentBroken, EnvironmentLost) as error:
                self._findings.error("episodes", self._place, str(error), "correct it: such an episode is played again in a run")
                continue
            except PromptTooLong as error:
                remedy = "shorten what the agent asks first, or raise model.max_context: a run leaves such a task out"
                self._findings.error("episodes", self._place, str(error), remedy)
                continue
            roles = None if self._spec.train == "all" else self._spec.train
            played.append(with_trained_roles(episode, roles))
        for remark in environments.remarks:
            self._findings.warning("import", self._place, remark, "see docs/how-to/agents.md")
        return self._checked(played)

    def _checked(self, played: Sequence[Episode]) -> AgentChecked:
        requests = self._requests
        for episode in played:
            for trajectory in episode.trajectories:
                role = requests.roles[trajectory.role]
                role.trajectories += 1
                role.trained = trajectory.trained
                role.sampled_tokens += int(trajectory.loss_mask.sum())
                role.learner_tokens += len(trajectory)
        trained = [role for role in requests.roles.values() if role.trained]
        sampled = sum(role.sampled_tokens for role in trained)
        in_vain: Counter[str] = Counter()
        for counts in requests.in_vain.values():
            in_vain.update(counts)
        self._find(played, sampled)
        return AgentChecked(
            environment=self._place,
            episodes=len(played),
            rewards=[episode.reward for episode in played],
            stop_reasons=dict(Counter(episode.stop_reason for episode in played)),
            protocols=dict(requests.protocols),
            roles=dict(requests.roles),
            asked_in_vain=dict(sorted(in_vain.items())),
            cost=sum(role.learner_tokens for role in trained) / sampled if sampled else None,
            findings=self._findings.all,
        )

    def _find(self, played: Sequence[Episode], sampled: int) -> None:
        """Collect what would make a run wrong or costly."""
        for problem, count in self._requests.problems.items():
            told = f"{pluralize(count, 'request')} got {problem}"
            self._findings.warning("requests", self._place, told, 'see "Errors" in docs/how-to/agents.md')
        kinds: dict[tuple[str, Beginning, str], list[Begun]] = defaultdict(list)
        for begun in self._requests.begun.elements():
            kinds[begun.role, begun.beginning, begun.kind].append(begun)
        for (role, beginning, _), several in kinds.items():
            if beginning is not Beginning.CONVERSATION:
                how = f": {several[0].how}" if several[0].how else ""
                problem = f"{pluralize(len(several), 'turn')} began a trajectory, {beginning}{how}"
                self._findings.warning("history", f"role {role}", problem, _REMEDIES[beginning])
        for reason in _NOT_FOR_LONG:
            if count := sum(episode.stop_reason is reason for episode in played):
                remedy = "see that the agent ends with the scripted answers, or raise the limit"
                self._findings.warning("limits", self._place, f"{pluralize(count, 'episode')} ended by {reason}", remedy)
        branched = sum(len(episode.trajectories) > 1 for episode in played)
        if branched and isinstance(self._recipe.algorithm.credit, TurnCreditConfig):
            problem = (
                f"{pluralize(branched, 'episode')} had several trajectories, whose turns have no common order: a run would end"
            )
            self._findings.error("credit", "algorithm.credit", problem, "set algorithm.credit.kind=episode")
        for problem in dict.fromkeys(self._missing_rewards(played)):
            remedy = "have the agent report it among the metrics of its result file, or take its name out"
            self._findings.error("rewards", "algorithm.advantage.rewards", problem, remedy)
        if played and not sampled:
            seen = ", ".join(sorted(self._requests.roles))
            problem = f"no trajectory is of a role that is trained; there are {seen}"
            self._findings.error("roles", f"{self._place}.train", problem, "name one of these, the names of models asked for")

    def _missing_rewards(self, played: Sequence[Episode]) -> Iterator[str]:
        """Yield why episodes could not be committed: they lack one of the rewards that the recipe compares."""
        for episode in played:
            try:
                named_rewards(episode, self._subject.compared_rewards)
            except ValueError as error:
                yield str(error)


_REMEDIES = {
    Beginning.REWRITTEN: "have the client send back what it was sent; else each of them costs its prompt once more",
    Beginning.TOOLS: "keep tools and their descriptions the same within a conversation",
    Beginning.AGAIN: "nothing, if it is meant: each answer is trained after what came before",
}


def _current() -> Placed:
    """Return the request that is being answered in this asyncio task."""
    from asyncrl.generators.gateway.serving import CURRENT

    turn = CURRENT.get()
    assert isinstance(turn, GatewayTurn)
    assert turn.placed is not None
    return turn.placed


@contextmanager
def folder_without_weights(recipe: Recipe) -> Iterator[str]:
    """Yield a folder with a model's tokenizer and configuration; weights may be there, and are not needed.

    Raises:
        RecipeError: there is no such model, or the hub cannot be asked.
    """
    if recipe.model.path != TINY:
        yield str(tokenizer_folder(recipe.model.path, "model.path"))
        return
    from asyncrl.learners.tiny.settings import Size
    from asyncrl.learners.tiny.tokenizer_alone import tiny_tokenizer
    from asyncrl.learners.tiny.warmup import config_of

    environments = {name: player.environment for name, player in players_of(recipe).items()}
    tokenizer = tiny_tokenizer(environments, recipe.seed)
    with tempfile.TemporaryDirectory(prefix="asyncrl-") as folder:
        tokenizer.save_pretrained(folder)
        config = config_of(tokenizer, Size(), [int(tokenizer.eos_token_id)])
        config.architectures = ["Qwen3ForCausalLM"]
        config.save_pretrained(folder)
        yield str(Path(folder))
