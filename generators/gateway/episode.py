"""An episode that clients play through the gateway: its token streams, its limits, and what its requests asked for in vain.

What always holds:

* an episode ends once, with one stop reason; from then on each request is told so, and none is sampled;
* its turns and sampled tokens keep to their limits, however many requests there are at once;
* a request whose prompt is too long ends nothing, as agents go on with a shorter one;
* the death of the engine is the episode's end as well, and whoever waits for it gets the engine's error.
"""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from asyncrl.core.errors import ComponentFailed
from asyncrl.core.messages import ToolSpec
from asyncrl.core.trajectory import StopReason, Trajectory
from asyncrl.generators.chat_format import ChatFormat
from asyncrl.generators.chat_template import TemplateUnsuitable, first_line
from asyncrl.generators.completion import Completion, Sampler
from asyncrl.generators.episode import EpisodeLimits
from asyncrl.generators.gateway.matching import Ask, Asked, Streams, TooManyStreams, Turn
from asyncrl.generators.gateway.messages import ChatMessage, for_template
from asyncrl.generators.gateway.observer import Observer, Placed, Silent
from asyncrl.generators.gateway.parameters import Constrained, Settled
from asyncrl.generators.gateway.problems import Kind, Problem, too_long
from asyncrl.generators.gateway.protocol import Protocol
from asyncrl.generators.gateway.sampled_text import SampledText

logger = logging.getLogger(__name__)


class GatewayLimits(msgspec.Struct, frozen=True):
    """What an episode may do beside what all episodes may.

    Attributes:
        episode: the limits that all episodes have.
        max_trajectories: how many token streams it may have.
        constrained: what becomes of requests that would constrain what is sampled.
        keep_traffic: whether its requests and answers are kept.
    """

    episode: EpisodeLimits
    max_trajectories: int = 16
    constrained: Constrained = "free"
    keep_traffic: bool = False


class GatewayEpisode:
    """One episode. Made within the event loop in which it is played.

    Args:
        sampler: samples its turns.
        observer: hears of its requests.

    Attributes:
        over: is done when the episode has ended by itself: with the stop reason, or the error of an engine that died.
        asked_in_vain: how often a parameter of a request was replaced, not enforced or ignored, by ``WHAT NAME``.
        unenforced: how many requests asked for what would constrain the sampling, and was not enforced.
        without_room: tokens of the last prompt, if it left no room for a turn; None if it did, or there was none.
    """

    def __init__(
        self,
        limits: GatewayLimits,
        sampler: Sampler,
        chat: ChatFormat,
        observer: Observer = Silent(),  # noqa: B008 - it has no state
    ) -> None:
        self.limits, self.sampler, self.chat, self.observer = limits, sampler, chat, observer
        self.streams = Streams(limits.max_trajectories)
        self.over: asyncio.Future[StopReason] = asyncio.get_running_loop().create_future()
        self.asked_in_vain: Counter[str] = Counter()
        self.unenforced = self._turns = self._sampled_tokens = self._promised_tokens = 0
        self._sampled = asyncio.Condition()
        self.without_room: int | None = None

    def end(self, reason: StopReason) -> None:
        """End the episode, unless it has ended already."""
        if not self.over.done():
            self.over.set_result(reason)

    def fail(self, error: ComponentFailed) -> None:
        """End the episode because the engine died."""
        if not self.over.done():
            self.over.set_exception(error)

    def check_open(self) -> None:
        """Raise a :class:`Problem` if the episode is over."""
        if not self.over.done():
            return
        if self.over.cancelled():
            raise Problem(Kind.OVER, "the episode is over")
        if (error := self.over.exception()) is not None:
            raise Problem(Kind.DEAD, f"the engine died: {error}")
        raise Problem(Kind.OVER, f"the episode is over: {self.over.result()}")

    def note(self, settled: Settled) -> None:
        """Count what a request asked for in vain; each is logged once."""
        self.unenforced += bool(settled.unenforced)
        for what, names in (
            ("replaced", settled.replaced),
            ("not enforced", settled.unenforced),
            ("ignored", settled.ignored),
        ):
            self.asked_in_vain.update(f"{what} {name}" for name in names)

    def check_turns(self) -> None:
        """Raise a :class:`Problem` if the episode is over, as it is with one turn too many."""
        self.check_open()
        if self._turns >= self.limits.episode.max_turns:
            self.end(StopReason.MAX_TURNS)
            self.check_open()

    async def sample(self, prompt: Sequence[int], most: int, stop_strings: tuple[str, ...], known_experts: int = 0) -> Completion:
        """Have a turn sampled after ``prompt``, of at most ``most`` tokens; ``known_experts`` as in :class:`.Sampler`.

        Raises:
            Problem: the episode is over.
            ComponentFailed: the engine died.
        """
        limits = self.limits.episode
        self.check_turns()
        self._turns += 1
        promised, sampled = 0, 0
        try:
            promised = await self._promised(len(prompt), most)
            completion = await self.sampler.generate(
                prompt,
                max_tokens=promised,
                sampling=msgspec.structs.replace(limits.sampling, stop=(*limits.sampling.stop, *stop_strings)),
                stop_token_ids=self.chat.ends_of_turn,
                known_experts=known_experts,
            )
            sampled = len(completion.token_ids)
            return completion
        except BaseException as error:
            self._turns -= 1
            if isinstance(error, ComponentFailed):
                self.fail(error)
            raise
        finally:
            self._sampled_tokens += sampled
            self._promised_tokens -= promised
            async with self._sampled:
                self._sampled.notify_all()

    async def _promised(self, length: int, most: int) -> int:
        """Return how many tokens a turn may have. If others may use up what it needs, wait until they are sampled."""
        limits = self.limits.episode
        async with self._sampled:
            while True:
                self.check_open()
                room, needs_more = limits.room(length, self._sampled_tokens)
                if room <= 0:
                    self.end(needs_more)
                    continue
                left, _ = limits.room(length, self._sampled_tokens + self._promised_tokens)
                if not self._promised_tokens or left >= min(most, room):
                    break
                await self._sampled.wait()
            promised = min(most, room)
            self._promised_tokens += promised
            return promised

    def trajectories(self) -> tuple[Trajectory, ...]:
        """Return what was sampled, after the episode has ended."""
        return self.streams.trajectories()


class GatewayTurn:
    """One request of an episode, from its conversation to the turn that answers it.

    Args:
        model: the name that the client asked for, which is its role.

    Attributes:
        placed: its conversation and its place, once it has one and its tokens are known.
        number: its place in the order of the requests that have one among the streams; None if it has none.
        failure: what ended it while it was sampled.
        text: what was sampled.
    """

    def __init__(self, episode: GatewayEpisode, protocol: Protocol, model: str) -> None:
        self.model = model
        self.episode, self.protocol = episode, protocol
        self.placed: Placed | None = None
        self._ask: Ask | None = None
        self.number: int | None = None
        self._given: list[int] = []
        self._ids: list[int] = []
        self._sampled: tuple[Completion, float] | None = None
        self.failure: BaseException | None = None
        self.text = ""

    @property
    def is_sampled(self) -> bool:
        """Whether its turn is whole."""
        return self._sampled is not None

    async def prompt(
        self, messages: Sequence[ChatMessage], tools: Sequence[Mapping[str, Any]], arguments: Mapping[str, Any]
    ) -> list[int]:
        """Return the tokens that the turn follows: those of its stream, and those of the messages that are new.

        Raises:
            Problem: the episode is over, the prompt is too long, or the chat template has no place for it.
        """
        if self._ask is None:
            await self._place(messages, tools, arguments)
        return self._ids

    async def _place(
        self, messages: Sequence[ChatMessage], tools: Sequence[Mapping[str, Any]], arguments: Mapping[str, Any]
    ) -> None:
        episode = self.episode
        specs = [spec_of(tool) for tool in tools]
        arguments = episode.chat.arguments_read(arguments, specs)
        episode.check_turns()
        asked = Asked(self.model, messages, [spec.as_template_input() for spec in specs], arguments)
        try:
            ask = episode.streams.begin(asked)
        except TooManyStreams:
            episode.end(StopReason.MAX_TRAJECTORIES)
            episode.check_open()
            raise
        tokens = ask.stream.tokens
        self.number = ask.number
        try:
            after = tokens.token_ids[-1] if ask.matched else None
            given = await rendered(episode.chat, messages[ask.matched :], specs, arguments, after)
            self._check_length(len(tokens) + len(given))
        except BaseException:
            episode.streams.give_up(ask)
            raise
        self._placed(ask, given, asked)

    def place_after(self, prompt: Sequence[int]) -> None:
        """Give a place to a request whose conversation is token ids.

        Raises:
            Problem: the episode is over, or the prompt is too long.
        """
        episode = self.episode
        episode.check_turns()
        self._check_length(len(prompt))
        try:
            ask = episode.streams.begin_after(self.model, prompt)
        except TooManyStreams:
            episode.end(StopReason.MAX_TRAJECTORIES)
            episode.check_open()
            raise
        self.number = ask.number
        asked = Asked(self.model, ({"role": "user", "content": episode.chat.decode(list(prompt))},))
        self._placed(ask, list(prompt[len(ask.stream.tokens) :]), asked)

    def _check_length(self, length: int) -> None:
        """Refuse a prompt that leaves no room for a turn."""
        if length >= (most := self.episode.limits.episode.max_context):
            self.episode.without_room = length
            raise too_long(self.protocol, length, most)

    def _placed(self, ask: Ask, given: list[int], asked: Asked) -> None:
        episode, tokens = self.episode, ask.stream.tokens
        self._ids = [*tokens.token_ids, *given]
        if ask.stream.turns:  # so far, its client has not come back after the last one
            tokens.answer_turn(0.0, (), max(0.0, time.perf_counter() - ask.stream.answered))
        self._ask, self._given = ask, given
        episode.without_room = None
        begins = None if ask.stream.turns else ask.stream.why
        self.placed = Placed(episode, self.protocol, asked, begins, ask.matched, len(ask.stream.turns), episode.asked_in_vain)
        episode.observer.placed(self.placed)

    async def sample(self, most: int, stop_strings: Sequence[str], *, skip_special: bool) -> SampledText:
        """Have the turn sampled, with at most ``most`` tokens, up to one of the stop strings.

        Raises:
            Problem: the episode is over.
            ComponentFailed: the engine died.
        """
        chat = self.episode.chat
        try:
            if self._sampled is None:
                self._sampled = await self._completion(most, tuple(each for each in stop_strings if each))
        except BaseException as failure:
            self.failure = failure
            raise
        completion, _ = self._sampled
        ids = completion.token_ids.tolist()
        spoken = ids[:-1] if ids[-1] in chat.ends_of_turn else ids
        text = chat.tokenizer.decode(spoken, skip_special_tokens=skip_special, clean_up_tokenization_spaces=False)
        text, stop_string = _until(text, stop_strings)
        self.text = text
        return SampledText(text, ids, completion.logprobs.tolist(), completion.finished_by_stop, stop_string)

    async def _completion(self, most: int, stop_strings: tuple[str, ...]) -> tuple[Completion, float]:
        asked = time.perf_counter()
        known = 0 if self._ask is None else self._ask.stream.tokens.known_experts
        completion = await self.episode.sample(self._ids, most, stop_strings, known)
        return completion, time.perf_counter() - asked

    def finish(self, message: ChatMessage) -> Turn:
        """Add the turn to its stream; ``message`` is what the client gets."""
        if self._ask is None or self._sampled is None or self.placed is None:
            raise RuntimeError("a turn is finished that was not sampled")
        completion, seconds = self._sampled
        if self.protocol is Protocol.GENERATE:  # the client got ids, which say nothing to an observer
            message = {"role": "assistant", "content": self.text}
        self.episode.observer.finished(self.placed, message)
        self._ask.stream.answered = time.perf_counter()
        return self.episode.streams.finish(self._ask, self._given, completion, seconds, message)

    def give_up(self) -> None:
        """End the request without a turn."""
        if self._ask is not None:
            self.episode.streams.give_up(self._ask)


def _until(text: str, strings: Sequence[str]) -> tuple[str, str | None]:
    """Return a text up to the first of some strings, and that string; None if it has none of them."""
    found = [(text.find(each), each) for each in strings if each and each in text]
    place, string = min(found, default=(len(text), None))
    return text[:place], string


async def rendered(
    chat: ChatFormat,
    messages: Sequence[ChatMessage],
    tools: Sequence[ToolSpec],
    arguments: Mapping[str, Any],
    after: int | None = None,
) -> list[int]:
    """Return the tokens of a conversation, or of what follows a turn in it.

    Args:
        after: the last token of that turn; None if there is none.

    Raises:
        Problem: the chat template has no place for it.
    """
    from jinja2 import TemplateError  # comes with transformers

    turns = [for_template(message) for message in messages]
    try:
        if after is None:
            return await chat.prompt(turns, tools, arguments)
        return await chat.delta(turns, tools, arguments, after=after)
    except TemplateUnsuitable as error:
        raise Problem(Kind.REFUSED, str(error), "messages") from error
    except TemplateError as error:
        text = f"the model's chat template has no place for these messages: {first_line(error)}"
        raise Problem(Kind.REFUSED, text, "messages") from error


def spec_of(tool: Mapping[str, Any]) -> ToolSpec:
    """Return a tool as environments describe theirs, so that the same tool has the same tokens."""
    function = tool["function"]
    parameters = function.get("parameters") or {"type": "object", "properties": {}}
    return ToolSpec(function["name"], function.get("description") or "", parameters)
