"""A model of one generator worker: leases tickets while it has room, plays their episodes on its engine, and hands them in.

The limit on its episodes (``generators/concurrency.py``) and the split of its time (``generators/engine_time.py``) are the
production code. What always holds: it asks for no ticket while it loads a publication, or while its engine is behind.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from asyncrl.core.episode_records import EpisodeRecord
from asyncrl.core.errors import FailureKind
from asyncrl.core.ids import GroupId, PolicyVersion, WorkerId
from asyncrl.core.measures.time_split import GeneratorTime
from asyncrl.core.ticket import Ticket
from asyncrl.generators.concurrency import Concurrency, EngineLoad
from asyncrl.generators.engine_time import Doing, EngineTime
from asyncrl.generators.worker import ADAPT_S
from asyncrl.simulation.engine import ModelEngine, ModelRequest, version_counts
from asyncrl.simulation.episodes import ModelEpisode
from asyncrl.simulation.events import Events

if TYPE_CHECKING:
    from asyncrl.simulation.modelled_run import ModelledRun


class ModelWorker:
    """One worker and its engine.

    Attributes:
        worker_id: the name under which the buffer knows it; a successor has another.
        limit: episodes that it may play at once now.

    Args:
        turn_s: seconds from turn to turn beside the environment's.
    """

    def __init__(self, events: Events, engine: ModelEngine, run: "ModelledRun", name: str, most: int, turn_s: float) -> None:
        self._events, self.engine, self._run, self._name = events, engine, run, name
        self._turn_s = turn_s
        self._playing: dict[tuple[GroupId, int], _Playing] = {}
        self.limit = self._most = most
        self._time = EngineTime(lambda: self.limit - len(self._playing), events.clock)
        self._concurrency = Concurrency(most, self._set_limit)
        self._adapting = self._asking = self.loading = False
        self._lives = 0
        self.alive = True
        self._settled_at = self._episode_s = self._held_back_s = self._paused_s = 0.0
        self._past = GeneratorTime()
        self._evaluated: Callable[[], None] | None = None
        self.worker_id = WorkerId(f"{name}/0")

    # Tickets

    def look_for_room(self) -> None:
        """Ask for tickets if there is room and no question is open."""
        room = self.limit - len(self._playing)
        if self.alive and room > 0 and not (self._asking or self.loading):
            self._asking = True
            self._run.ask(self, -(-room // self._run.group_size))

    def answered(self, tickets: list[Ticket]) -> None:
        """Take the answer to the question."""
        self._asking = False
        for ticket in tickets:
            for index in ticket.samples:
                self._begin(ticket, index)
        self.look_for_room()

    # Episodes

    def _begin(self, ticket: Ticket, index: int) -> None:
        self._settle()
        self._time.change(Doing.EPISODE, 1)
        episode, breaks = self._run.draw(ticket, index)
        playing = self._playing[ticket.group_id, index] = _Playing(ticket, index, episode)
        if breaks:
            self._events.after(episode.reset_s, partial(self._if_there, playing, self._broke))
        elif episode.reset_s > 0:
            self._events.after(episode.reset_s, partial(self._if_there, playing, self._turn))
        else:
            self._turn(playing)

    def _if_there(self, playing: "_Playing", go_on: Callable[["_Playing"], None]) -> None:
        if self._playing.get((playing.ticket.group_id, playing.index)) is playing:
            go_on(playing)

    def _turn(self, playing: "_Playing") -> None:
        turn = playing.episode.turns[len(playing.requests)]
        playing.context += turn.given
        self._time.change(Doing.REQUEST, 1)
        request = ModelRequest(
            playing,
            playing.context,
            turn.sampled,
            playing.ticket.group_id,
            playing.episode.prompt,
            partial(self._if_there, playing, self._sampled),
        )
        playing.requests.append(request)
        self.engine.submit(request)
        if self.engine.waiting and self.engine.cache_share > 0 and not self._adapting:
            self._adapting = True
            self._events.after(ADAPT_S, self._adapt)

    def _sampled(self, playing: "_Playing") -> None:
        self._time.change(Doing.REQUEST, -1)
        turn = playing.episode.turns[len(playing.requests) - 1]
        playing.context += turn.sampled
        last = len(playing.requests) == len(playing.episode.turns)
        go_on = self._over if last else self._turn
        if last:
            self.engine.forget(playing)
        if (seconds := turn.environment_s + self._turn_s) > 0:
            self._events.after(seconds, partial(self._if_there, playing, go_on))
        else:
            go_on(playing)

    def _over(self, playing: "_Playing") -> None:
        self._end(playing)
        record = self._run.record(playing.ticket, playing.index, playing.episode, version_counts(playing.requests))
        if playing.episode.score_s > 0:
            self._time.change(Doing.SCORE, 1)
            self._events.after(playing.episode.score_s, partial(self._scored, record, self._time))
        else:
            self._run.hand_in(record)
        self.look_for_room()

    def _scored(self, record: EpisodeRecord, time: EngineTime) -> None:
        time.change(Doing.SCORE, -1)
        self._run.hand_in(record)

    def _broke(self, playing: "_Playing") -> None:
        self._end(playing)
        self._run.fail(playing.ticket, playing.index, FailureKind.DATA)
        self.look_for_room()

    def _end(self, playing: "_Playing") -> None:
        self._settle()
        self._time.change(Doing.EPISODE, -1)
        del self._playing[playing.ticket.group_id, playing.index]

    # Evaluation

    def evaluate(self, episodes: list[ModelEpisode], done: Callable[[], None]) -> None:
        """Play the episodes of an evaluation, as many at once as of training, and then ``done``; at once without an engine."""
        if not self.alive:
            done()
            return
        time, life, self._evaluated = self._time, self._lives, done
        time.change(Doing.EVALUATION, 1)
        waiting, left = iter(episodes), [len(episodes)]

        def begin() -> None:
            if (episode := next(waiting, None)) is not None:
                play(episode, 0, 0, object())

        def play(episode: ModelEpisode, number: int, context: int, key: object) -> None:
            if self._lives != life:  # the evaluation was over when its engine died
                return
            turn = episode.turns[number]
            context += turn.given

            def ended() -> None:
                time.change(Doing.EVALUATION_REQUEST, -1)
                if number + 1 < len(episode.turns):
                    again = partial(play, episode, number + 1, context + turn.sampled, key)
                    self._events.after(turn.environment_s + self._turn_s, again)
                    return
                left[0] -= 1
                if left[0]:
                    begin()
                else:
                    time.change(Doing.EVALUATION, -1)
                    self._evaluated = None
                    done()

            time.change(Doing.EVALUATION_REQUEST, 1)
            self.engine.submit(ModelRequest(key, context, turn.sampled, key, 0, ended))

        for _ in range(min(self._most, len(episodes))):
            begin()

    # Publications, and the end of an engine

    def load(self, version: PolicyVersion, move_s: float, pause_s: float, done: Callable[[], None]) -> None:
        """Load a version: the engine samples on while it is made ready, and is then paused."""
        self.loading = True
        loading = self._time.loading_publication(lambda: self._paused_s)
        loading.__enter__()
        life = self._lives

        def pause() -> None:
            if self._lives == life:
                self.engine.pause()
                self._events.after(pause_s, loaded)

        def loaded() -> None:
            if self._lives != life:
                return
            self._paused_s += pause_s
            self.engine.load(version)
            self.loading = False
            loading.__exit__(None, None, None)
            self._asking = False
            done()
            self.look_for_room()

        self._events.after(move_s, pause)

    def die(self) -> None:
        """Lose the engine and all episodes, until :meth:`revive`."""
        self._past += self._time.use()
        self._playing.clear()
        self._settle()
        self.engine.pause()
        self._time = EngineTime(lambda: 0, self._events.clock)
        self._lives += 1
        self.alive = self.loading = self._asking = False
        if self._evaluated is not None:
            done, self._evaluated = self._evaluated, None
            done()

    def revive(self, engine: ModelEngine) -> None:
        """Go on with a new engine."""
        self._past += self._time.use()
        self._time = EngineTime(lambda: self.limit - len(self._playing), self._events.clock)
        self.engine, self.alive, self.worker_id = engine, True, WorkerId(f"{self._name}/{self._lives}")
        self.look_for_room()

    def use(self) -> GeneratorTime:
        """Return where its time went so far."""
        self._settle()
        return self._past + self._time.use() + GeneratorTime(episodes=self._episode_s, held_back=self._held_back_s)

    def _settle(self) -> None:
        now = self._events.now
        elapsed, self._settled_at = now - self._settled_at, now
        self._time.settle()
        self._episode_s += len(self._playing) * elapsed
        if self.limit - len(self._playing) >= self._run.group_size:
            self._held_back_s += elapsed

    def _adapt(self) -> None:
        """Look at the load of the engine, once a second for as long as the cache is or was too small."""
        engine = self.engine
        load = EngineLoad(engine.requests - engine.waiting, engine.waiting, engine.cache_share)
        self._concurrency.observe(load, len(self._playing))
        self._adapting = self.limit < self._most or engine.waiting > 0
        if self._adapting:
            self._events.after(ADAPT_S, self._adapt)

    def _set_limit(self, limit: int, reason: str) -> None:
        self._settle()
        self.limit = limit
        self.look_for_room()


class _Playing:
    """An episode that is played.

    Attributes:
        context: tokens so far.
        requests: its turns so far.
    """

    __slots__ = ("context", "episode", "index", "requests", "ticket")

    def __init__(self, ticket: Ticket, index: int, episode: ModelEpisode) -> None:
        self.ticket, self.index, self.episode = ticket, index, episode
        self.context = 0
        self.requests: list[ModelRequest] = []
