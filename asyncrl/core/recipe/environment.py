"""The recipe's section on the environment: one of several kinds, or a mixture of them.

What always holds: every environment that plays episodes is a *member* with limits of its own. A recipe without a mixture has
one member, whose name is empty.
"""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from asyncrl.core.recipe.section import Count, Penalty, Seconds, Section, Text

MemberName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*\Z")]
VariableName = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]*\Z")]


class EpisodeConfig(Section, frozen=True, kw_only=True):
    """The limits of the episodes of an environment.

    Attributes:
        max_turns: the most turns of the model in an episode.
        max_calls: the most tool calls in an episode; a turn that would go over it ends the episode, and none of its calls is run.
            null is no limit.
        max_sampled_tokens: the most tokens that the model samples in all turns of an episode together; null is no limit.
        max_tool_output: the most characters of one tool message. The middle of a longer one is cut out, and a line there says how
            much; the metric ``tool_output_cut`` counts the episode's lost characters. 20,000 characters are about 5,000 tokens
            of English.
        on_malformed_call: ``respond`` tells the model what was wrong with its call; ``end`` ends the episode there; ``penalise``
            tells the model, and takes ``malformed_penalty`` from the turn's reward for each malformed call.
        malformed_penalty: what ``penalise`` takes; the episode's sum is the metric ``malformed_penalty``, a number below 0.
        on_tool_error: ``respond`` gives the model the error text; ``end`` ends the episode there.
        tool_timeout_s: deadline of one tool call; a call that misses it is a tool error.
        episode_timeout_s: deadline of a whole episode up to the final answer; scoring that answer has as long again.
        train: which trajectories of an episode are trained: ``all``, or those of the roles in a list. The others are played and
            kept all the same.
    """

    max_turns: Count = 6
    max_calls: Count | None = None
    max_sampled_tokens: Count | None = None
    max_tool_output: Count = 20_000
    on_malformed_call: Literal["respond", "end", "penalise"] = "respond"
    malformed_penalty: Penalty = 0.1
    on_tool_error: Literal["respond", "end"] = "respond"
    tool_timeout_s: Seconds = 10.0
    episode_timeout_s: Seconds = 300.0
    train: Literal["all"] | tuple[Text, ...] = "all"

    @property
    def by_member(self) -> "Mapping[str, MemberConfig]":
        """The environments that play episodes, by name: this one alone, without a name."""
        assert isinstance(self, MemberConfig)
        return {"": self}


class ClassEnvironmentConfig(EpisodeConfig, frozen=True, tag_field="kind", tag="class"):
    """A built-in environment, or a Python class of your own.

    Attributes:
        name: a built-in environment (docs/reference/built-in-environments.md), or ``module:Class`` for one of your own.
        options: keyword arguments of the environment's constructor.
        secrets: names of environment variables whose values the environment gets as ``self.secrets``. The values are taken where
            the run is launched, and stand in no file of the run.
    """

    usual: ClassVar[bool] = True

    name: Text
    options: dict[str, Any] = {}
    secrets: tuple[VariableName, ...] = ()

    @property
    def label(self) -> str:
        """The environment's name in summaries and kept episodes."""
        return self.name

    @property
    def secret_variables(self) -> tuple[str, ...]:
        """Names of the environment variables that this environment needs."""
        return self.secrets


class RemoteEnvironmentConfig(EpisodeConfig, frozen=True, tag_field="kind", tag="remote"):
    """An environment that ``asyncrl env serve`` serves from another virtual environment, container or host.

    Attributes:
        urls: the servers, as ``ws://host:port``; episodes are spread over them.
        token_variable: name of the environment variable that has the servers' token.
        options: keyword arguments of the environment's constructor.
        server_timeout_s: how long episodes wait while no server is there, before the run ends.
    """

    urls: Annotated[tuple[Text, ...], Meta(min_length=1)]
    token_variable: VariableName = "ASYNCRL_ENV_TOKEN"
    options: dict[str, Any] = {}
    server_timeout_s: Seconds = 300.0

    @property
    def label(self) -> str:
        """The environment's name in summaries and kept episodes."""
        return "remote"

    @property
    def secret_variables(self) -> tuple[str, ...]:
        """Names of the environment variables that this environment needs."""
        return (self.token_variable,)


class McpEnvironmentConfig(EpisodeConfig, frozen=True, tag_field="kind", tag="mcp"):
    """The tools of an MCP server (Model Context Protocol), which is started by ``command`` or answers at ``url``.

    Attributes:
        reward: what rewards the final answer: ``exact``, ``math``, or ``module:function``, called with the task and the answer.
        tasks: ``module:function`` that makes tasks, called with split, count and seed; empty if they come from files.
        command: the server's command line; it is spoken to over standard input and output. ``python`` is the interpreter that
            runs asyncrl.
        url: where the server answers (streamable HTTP); empty if it is started by ``command``.
        tools: names of the tools that the model is shown; empty means all.
        system_prompt: the system message before the task's prompt; none if empty.
        secrets: names of environment variables that the server gets. The values are taken where the run is launched, and stand
            in no file of the run.
        token_variable: name of the environment variable whose value is sent to ``url`` as bearer token; null if none is.
        session: ``shared`` by all episodes of a generator; or one for each ``episode``, for servers that keep state or answer
            one call after the other. With ``command``, each session is a process; at a ``url``, it must have an id.
        server_timeout_s: how long episodes wait while no session can be begun, before the run ends.
    """

    reward: Text
    tasks: str = ""
    command: tuple[Text, ...] = ()
    url: str = ""
    tools: tuple[Text, ...] = ()
    system_prompt: str = ""
    secrets: tuple[VariableName, ...] = ()
    token_variable: VariableName | None = None
    session: Literal["shared", "episode"] = "shared"
    server_timeout_s: Seconds = 300.0

    @property
    def label(self) -> str:
        """The environment's name in summaries and kept episodes."""
        return "mcp"

    @property
    def secret_variables(self) -> tuple[str, ...]:
        """Names of the environment variables that this environment needs."""
        return self.secrets + ((self.token_variable,) if self.token_variable else ())


class AgentSandboxConfig(Section, frozen=True, kw_only=True):
    """Confines the program of an agent: docs/how-to/agents.md.

    Attributes:
        backend: ``bubblewrap``, ``sandlock``, or ``auto`` for the first of them that works here; without one the recipe is
            refused.
        readable: files and folders that the program may read, besides the system's programs and libraries, the Python that runs
            it, and the files that its command names.
        memory_mb: memory in MiB, summed over its processes.
        processes: processes and threads at one moment.
        folder_mb: size of the episode's folder in MiB, with 4 KiB for each file, whatever its size.
    """

    backend: Literal["auto", "bubblewrap", "sandlock"]
    readable: tuple[Text, ...] = ()
    memory_mb: Annotated[int, Meta(ge=32, le=65536)] = 4096
    processes: Annotated[int, Meta(ge=1, le=1024)] = 256
    folder_mb: Annotated[int, Meta(ge=1, le=65536)] = 1024


class AgentEnvironmentConfig(EpisodeConfig, frozen=True, tag_field="kind", tag="agent"):
    """A program that talks to a model over the protocol of OpenAI or of Anthropic, unchanged: docs/how-to/agents.md.

    Attributes:
        command: the program's command line, started once for each episode. ``python`` is the interpreter that ``python`` names,
            and ``{prompt}`` within a word is the task's question. Either this or ``function``.
        function: ``module:function``, called once for each episode with the task, in a process of its own that is forked from
            one which has imported the module. The module is searched for on the interpreter's path and in the folder you launch
            from.
        python: the Python that has what the agent needs; empty for the one that runs asyncrl.
        reward: what rewards the answer: ``exact``, ``math``, or ``module:function``, called with the task and the answer; empty
            if the agent gives the reward itself.
        tasks: ``module:function`` that makes tasks, called with split, count and seed; empty if they come from files.
        task_data: names of the task's data that the program is shown; it never sees others.
        variables: environment variables of the program.
        secrets: names of environment variables that the program gets. The values are taken where the run is launched, and stand
            in no file of the run.
        max_trajectories: the most token streams of an episode; a request that would begin one more ends it.
        constrained: what becomes of requests that ask for a format or a certain call: ``free`` samples as for all others,
            ``refuse`` answers with an error.
        gateway: where the program finds its model: at ``loopback``, which programs on the same host reach; or at the ``node``'s
            address in the cluster, which others reach too, such as containers. The requests are not encrypted.
        sandbox: confines a ``command``, which then reaches its model and nothing else; null lets it do whatever you may do.
        keep_traffic: whether what the program asked and was answered is kept for ``asyncrl agent replay``, with the episodes
            that ``tracking.trajectories`` keeps.
        on_agent_error: ``fail`` has an episode whose program exits with an error, or leaves a result file that is none, played
            again, unless a limit was reached; ``score`` rewards it.
    """

    max_turns: Count = 50
    command: tuple[Text, ...] = ()
    function: str = ""
    python: str = ""
    reward: str = ""
    tasks: str = ""
    task_data: tuple[Text, ...] = ()
    variables: dict[VariableName, str] = {}
    secrets: tuple[VariableName, ...] = ()
    max_trajectories: Count = 16
    constrained: Literal["free", "refuse"] = "free"
    gateway: Literal["loopback", "node"] = "loopback"
    sandbox: AgentSandboxConfig | None = None
    keep_traffic: bool = False
    on_agent_error: Literal["fail", "score"] = "fail"

    @property
    def label(self) -> str:
        """The environment's name in summaries and kept episodes."""
        return "agent"

    @property
    def secret_variables(self) -> tuple[str, ...]:
        """Names of the environment variables that this environment needs."""
        return self.secrets


MemberConfig = ClassEnvironmentConfig | RemoteEnvironmentConfig | McpEnvironmentConfig | AgentEnvironmentConfig


class MixedEnvironmentConfig(Section, frozen=True, tag_field="kind", tag="mixed"):
    """Several environments in one run. Each task names the one that plays it.

    Attributes:
        members: the environments by name, each with limits of its own.
    """

    members: Annotated[dict[MemberName, MemberConfig], Meta(min_length=1)]

    @property
    def by_member(self) -> Mapping[str, MemberConfig]:
        """The environments that play episodes, by name."""
        return self.members

    @property
    def label(self) -> str:
        """The environment's name in summaries."""
        return "+".join(self.members)


EnvironmentConfig = (
    ClassEnvironmentConfig | RemoteEnvironmentConfig | McpEnvironmentConfig | AgentEnvironmentConfig | MixedEnvironmentConfig
)


def member_place(member: str) -> str:
    """The recipe key of a member's section, e.g. ``environment.members.easy``; ``environment`` where there is no mixture."""
    return f"environment.members.{member}" if member else "environment"


def member_of(environment: EnvironmentConfig, source: str) -> str:
    """The member that plays the tasks of a source; empty where there is no mixture.

    In a mixture a source's name is that of its member, or begins with it and a slash.
    """
    return source.partition("/")[0] if isinstance(environment, MixedEnvironmentConfig) else ""


def label_of(environment: EnvironmentConfig, source: str | None) -> str:
    """Return the name of an environment in the record of an episode, given its task source if that is known."""
    return environment.label if source is None else member_of(environment, source) or environment.label
