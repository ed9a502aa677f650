"""The environment of an episode that is played on a server; all episodes of a worker share its pool of connections."""

from asyncrl.core.task import Task
from asyncrl.envs.base import Action, Environment, Observation, StepResult
from asyncrl.envs.remote import protocol
from asyncrl.envs.remote.connection import Connection
from asyncrl.envs.remote.pool import ServerPool
from asyncrl.envs.remote.protocol import Close, Reset, Step


class RemoteEnvironment(Environment):
    """Passes the calls of one episode on to a server, always the same.

    A lost server is an ``EnvironmentLost``, whatever the call: the episode is issued again.

    Attributes:
        episode: its number.
    """

    def __init__(self, pool: ServerPool) -> None:
        self._pool, self.episode = pool, next(pool.episode_numbers)
        self._connection: Connection | None = None

    async def ready(self) -> None:
        """Wait for a server."""
        self.use(await self._pool.take())

    def use(self, connection: Connection) -> None:
        """Play the episode over this connection."""
        self._connection = connection

    async def reset(self, task: Task) -> Observation:
        """Begin the episode on the server."""
        servers = self._pool.servers

        def request(number: int) -> Reset:
            return Reset(
                id=number,
                deadline_s=servers.episode_timeout_s,
                episode=self.episode,
                task=task,
                options=dict(servers.options),
                tool_timeout_s=servers.tool_timeout_s,
            )

        observed = await self._connected.reset(request)
        self.scores_answers = observed.scores_answers
        return Observation(observed.messages, observed.tools)

    async def step(self, action: Action) -> StepResult:
        """Play the turn on the server."""
        seconds, calls, content = self._pool.servers.episode_timeout_s, protocol.wire_calls(action), action.content

        def request(number: int) -> Step:
            return Step(id=number, deadline_s=seconds, episode=self.episode, content=content, calls=calls)

        return protocol.step_result(await self._connected.step(request))

    async def close(self) -> None:
        """End the episode on the server."""
        connection, self._connection = self._connection, None
        if connection is None:
            return
        try:
            seconds = self._pool.servers.tool_timeout_s
            await connection.close_episode(lambda number: Close(id=number, deadline_s=seconds, episode=self.episode))
        finally:
            self._pool.give_back(connection)

    @property
    def _connected(self) -> Connection:
        if self._connection is None:
            raise RuntimeError("ready() comes before reset() and step()")
        return self._connection
