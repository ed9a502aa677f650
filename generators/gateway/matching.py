"""Matches the requests of one episode to its token streams.

A client sends its whole conversation with each request. The turns in it that were sampled here shall be the tokens that the
engine sampled, never their text tokenized again. So a request goes on where the longest beginning of its conversation ends
that was sampled here: in the stream itself, if that is where the stream ends; else in a new stream, a *branch*, which has the
tokens up to there as context. A conversation without such a beginning is a new stream. Where clients send token ids, these are
compared in place of messages.

What always holds:

* a turn is in exactly one stream as sampled; in branches its tokens are context;
* each turn of a stream follows exactly the tokens that the engine had before it when it sampled the turn;
* nothing is added to a stream before its turn is whole. The last turn may be taken back as long as nobody has gone on from it;
* a stream samples one turn at a time.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec
import numpy as np

from asyncrl.core.trajectory import StartReason, Trajectory
from asyncrl.generators.completion import Completion
from asyncrl.generators.gateway.messages import ChatMessage, call_ids, chained, start_of_chain
from asyncrl.generators.token_stream import TokenStream

_TOKENS = "tokens"
"""What streams of requests in token ids have in place of tools and arguments of the template."""


class TooManyStreams(Exception):
    """A request would begin one stream too many."""


class Step(StrEnum):
    """What happens to a request's place among the streams."""

    BEGAN = "began"
    FINISHED = "finished"
    GIVEN_UP = "given up"
    TAKEN_BACK = "taken back"


class Asked(msgspec.Struct, frozen=True):
    """What a request asks for.

    Attributes:
        role: who asks.
        messages: the conversation, which ends with what the policy is to answer.
        tools: the tools as the chat template gets them.
        arguments: the template's further arguments.
    """

    role: str
    messages: Sequence[ChatMessage]
    tools: Sequence[Mapping[str, Any]] = ()
    arguments: Mapping[str, Any] = {}


class Stream:
    """One token stream of an episode.

    Attributes:
        parent: the stream from which it branched off; None if from none.
        shared: how many tokens it has from there.
        tokens: its tokens, but those of a last turn that may still be taken back.
        busy: whether a turn is being sampled.
        answered: when its last turn was sampled, on a clock of the user's.
    """

    def __init__(self, role: str, setting: str, why: StartReason, after: "Turn | None" = None) -> None:
        self.role, self.setting, self.why = role, setting, why
        self.tokens, self.busy, self.answered = TokenStream(), False, 0.0
        self.turns = list[Turn]()
        self.parent = None if after is None else after.stream
        self.shared = 0
        if after is not None:
            self.shared = after.end
            self.tokens.append_given(after.stream.tokens.token_ids[: self.shared])

    def ends_within(self, tokens: Sequence[int]) -> "Iterator[tuple[Turn, int]]":
        """Yield the turns up to whose ends ``tokens`` begin as the stream does, with these ends."""
        last = self.turns[-1:]
        unsettled = [token for turn in last for token in turn.unsettled]
        own = np.array([*self.tokens.token_ids, *unsettled], np.int32)
        length = min(len(own), len(tokens))
        differ = np.flatnonzero(own[:length] != np.array(tokens[:length], np.int32))
        alike = int(differ[0]) if len(differ) else length
        for turn in self.turns:
            if (end := turn.end if turn.settled else len(own)) <= alike:
                yield turn, end

    def settle(self) -> None:
        """Keep the last turn: somebody goes on from it, or the episode is over."""
        if self.turns:
            self.turns[-1].settle()


class Turn:
    """A turn that was sampled. Until it is settled, its stream does not have its tokens.

    Args:
        ask: the request that it answers.
        message: the turn as the client gets it.
        sampled: the tokens before it that are new in the stream, what was sampled, and the seconds that it took.

    Attributes:
        tip: hash of the conversation that ends with it.
        end: where it ends in its stream's tokens, once it is settled.
    """

    def __init__(self, ask: "Ask", message: ChatMessage, sampled: tuple[Sequence[int], Completion, float]) -> None:
        self.stream, self.number = ask.stream, ask.number
        self.tip, self.call_ids = chained(ask.tip, message), call_ids(message)
        self.end = 0
        self._sampled: tuple[Sequence[int], Completion, float] | None = sampled

    @property
    def is_last(self) -> bool:
        """Whether its stream ends with it."""
        return self.stream.turns[-1] is self

    @property
    def unsettled(self) -> list[int]:
        """The tokens that its stream will have once it is settled, those before it included; none if it is."""
        if self._sampled is None:
            return []
        given, completion, _ = self._sampled
        return [*given, *completion.token_ids.tolist()]

    @property
    def settled(self) -> bool:
        """Whether it is in its stream's tokens for good."""
        return self._sampled is None

    def settle(self) -> None:
        """Have its stream keep it."""
        if self._sampled is None:
            return
        given, completion, seconds = self._sampled
        self._sampled = None
        self.stream.tokens.append_given(given)
        self.stream.tokens.append_turn(completion, seconds)
        self.end = len(self.stream.tokens)


class Ask(msgspec.Struct, frozen=True):
    """A request that has its place: its turn will be the next of ``stream``.

    Attributes:
        number: its place in the order of the requests.
        matched: how many messages of the conversation, or tokens of it, are in the stream already; the others are to be given.
        tip: hash of the conversation.
    """

    number: int
    stream: Stream
    matched: int
    tip: bytes


class Streams:
    """The token streams of one episode; ``most`` is how many there may be.

    Attributes:
        steps: what happened to the requests, by their numbers, in this order. The same steps make the same streams again.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._begun = 0
        self.steps: list[tuple[Step, int]] = []
        self._streams: list[Stream] = []
        self._turns: defaultdict[bytes, list[Turn]] = defaultdict(list)
        self._asked: set[bytes] = set()

    @property
    def taken_back(self) -> int:
        """How many turns were taken back."""
        return sum(step is Step.TAKEN_BACK for step, _ in self.steps)

    def begin(self, asked: Asked) -> Ask:
        """Find the place of a request. Its stream is busy until :meth:`finish` or :meth:`give_up`.

        Raises:
            TooManyStreams: the request would begin another stream, and there may be no more.
        """
        setting = msgspec.json.encode((asked.tools, asked.arguments), order="deterministic").decode()
        tip = start_of_chain((asked.role, setting))
        found, matched = list[Turn](), 0
        for number, message in enumerate(asked.messages, start=1):
            tip = chained(tip, message)
            if message["role"] == "assistant" and (here := self._turns.get(tip)):
                found, matched = here, number
        if found:
            stream = self._continued(found, call_ids(asked.messages[matched - 1]), tip)
        else:
            stream = self._new(asked.role, setting, self._why(asked.role, setting, tip))
        return self._began(tip, stream, matched)

    def begin_after(self, role: str, prompt: Sequence[int]) -> Ask:
        """Find the place of a request whose conversation is token ids: in the stream whose turn ends furthest in them.

        Raises:
            TooManyStreams: see :meth:`begin`.
        """
        tip = start_of_chain((role, _TOKENS, list(prompt)))
        ends = [(end, turn) for stream in self._streams if stream.role == role for turn, end in stream.ends_within(prompt)]
        matched = max((end for end, _ in ends), default=0)
        found = [turn for end, turn in ends if end == matched]
        stream = self._continued(found, frozenset(), tip) if found else self._new(role, _TOKENS, self._why(role, _TOKENS, tip))
        return self._began(tip, stream, matched)

    def _began(self, tip: bytes, stream: Stream, matched: int) -> Ask:
        self._asked.add(tip)
        stream.busy = True
        ask = Ask(self._begun, stream, matched, tip)
        self._begun += 1
        self.steps.append((Step.BEGAN, ask.number))
        return ask

    def _continued(self, found: Sequence[Turn], ids: frozenset[str], tip: bytes) -> Stream:
        """Return the stream that goes on from one of the turns that were ``found``: its own if it ends there, else a branch."""

        def rank(turn: Turn) -> tuple[bool, bool, int]:
            return bool(ids) and turn.call_ids == ids, turn.is_last and not turn.stream.busy, self._streams.index(turn.stream)

        best = max(found, key=rank)
        if best.is_last and not best.stream.busy:
            best.settle()
            return best.stream
        why = StartReason.PARALLEL if best.is_last or tip in self._asked else StartReason.HISTORY_REWRITTEN
        best.settle()
        return self._new(best.stream.role, best.stream.setting, why, best)

    def _new(self, role: str, setting: str, why: StartReason, after: Turn | None = None) -> Stream:
        if len(self._streams) >= self._most:
            raise TooManyStreams
        self._streams.append(Stream(role, setting, why, after))
        return self._streams[-1]

    def _why(self, role: str, setting: str, tip: bytes) -> StartReason:
        """Say why a conversation of which nothing was sampled here begins a stream."""
        if not self._streams:
            return StartReason.FIRST
        of_role = [stream for stream in self._streams if stream.role == role]
        if not of_role:
            return StartReason.OTHER_ROLE
        if all(stream.setting != setting for stream in of_role):
            return StartReason.OTHER_TOOLS
        return StartReason.PARALLEL if tip in self._asked else StartReason.HISTORY_REWRITTEN

    def finish(self, ask: Ask, given: Sequence[int], completion: Completion, seconds: float, message: ChatMessage) -> Turn:
        """Add the turn that was sampled for a request after the tokens ``given``, in ``seconds``.

        Args:
            message: the turn as the client gets it, by which it will be found again.
        """
        turn = Turn(ask, message, (given, completion, seconds))
        ask.stream.settle()
        ask.stream.turns.append(turn)
        ask.stream.busy = False
        self._turns[turn.tip].append(turn)
        self.steps.append((Step.FINISHED, ask.number))
        return turn

    def give_up(self, ask: Ask) -> None:
        """End a request without a turn: nothing of it remains."""
        ask.stream.busy = False
        self._forget_empty(ask.stream)
        self.steps.append((Step.GIVEN_UP, ask.number))

    def take_back(self, turn: Turn) -> bool:
        """Remove a turn that never reached the client; returns whether it could be: nobody has gone on from it."""
        if turn.settled:
            return False
        turn.stream.turns.remove(turn)
        self._turns[turn.tip].remove(turn)
        self._forget_empty(turn.stream)
        self.steps.append((Step.TAKEN_BACK, turn.number))
        return True

    def _forget_empty(self, stream: Stream) -> None:
        if not stream.turns:
            self._streams.remove(stream)

    def trajectories(self) -> tuple[Trajectory, ...]:
        """End the episode: keep all turns, and return the streams in the order of their first requests, none without a turn."""
        for stream in self._streams:
            stream.settle()
        kept = [stream for stream in self._streams if stream.turns]
        return tuple(
            Trajectory(
                token_ids=np.array(stream.tokens.token_ids, np.int32),
                logprobs=stream.tokens.logprobs,
                loss_mask=stream.tokens.loss_mask,
                version_spans=stream.tokens.version_spans,
                turns=tuple(stream.tokens.turns),
                experts=stream.tokens.experts,
                part=part,
                role=stream.role,
                parent=None if stream.parent is None else kept.index(stream.parent),
                shared=stream.shared,
                why=stream.why if part else StartReason.FIRST,  # an earlier one may have come to nothing
            )
            for part, stream in enumerate(kept)
        )
