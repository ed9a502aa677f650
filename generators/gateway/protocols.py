"""Answers requests in the protocols of the agents, by vLLM's serving classes.

What always holds: a turn is added to its stream once its answer is made, as what the answer says. A request that ends otherwise
leaves nothing behind. What the policy samples never fails a request: if vLLM cannot read its calls, the client gets the text.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from asyncrl.core.errors import AsyncRLError, ComponentFailed
from asyncrl.generators.chat_format import ChatFormat
from asyncrl.generators.gateway import answer_messages
from asyncrl.generators.gateway.episode import GatewayEpisode, GatewayLimits, GatewayTurn, rendered, spec_of
from asyncrl.generators.gateway.matching import Turn
from asyncrl.generators.gateway.messages import ChatMessage, calls_of, text_of
from asyncrl.generators.gateway.parameters import Settled, counted, settled, settled_sampling
from asyncrl.generators.gateway.problems import Kind, Problem
from asyncrl.generators.gateway.protocol import Protocol
from asyncrl.generators.gateway.sampled_text import SampledText

if TYPE_CHECKING:
    from vllm import AsyncLLMEngine
    from vllm.config import VllmConfig
    from vllm.entrypoints.serve.engine.protocol import ErrorResponse
    from vllm.renderers import BaseRenderer

logger = logging.getLogger(__name__)

_NO_CALLS = ("none", {"type": "none"})
"""Choices of tools with which a turn's text is not searched for calls, as each protocol has it."""
_HARMONY = "gpt_oss"
_MOST_SHOWN = 1000
"""The most characters of a validation error that a client is told."""


class Answer(msgspec.Struct, frozen=True):
    """What a client gets.

    Attributes:
        chunks: the body, in one piece or several.
        is_stream: whether these are server-sent events.
        turn: the turn that it is; None if it is none.
    """

    chunks: tuple[bytes, ...]
    is_stream: bool = False
    turn: Turn | None = None


class _Way(msgspec.Struct, frozen=True):
    """How requests of one protocol are answered.

    Attributes:
        no_calls: the choice of tools with which a turn's text is not searched for calls.
    """

    request: Any
    serve: Callable[[Any, None], Awaitable[Any]]
    message_of: Callable[[Mapping[str, Any]], ChatMessage]
    message_of_stream: Callable[[list[str]], ChatMessage]
    omit_none: bool
    no_calls: Any


class Protocols:
    """The protocols in which one model can be asked.

    Args:
        config: configuration of the model's engine.
        renderer: class of the engine's renderer.
        tool_parser, reasoning_parser: names of vLLM's parsers for the model.

    Raises:
        AsyncRLError: vLLM renders and reads conversations of this kind of model in a way of its own.
    """

    def __init__(
        self,
        config: "VllmConfig",
        renderer: "type[BaseRenderer]",
        chat: ChatFormat,
        tool_parser: str,
        reasoning_parser: str | None,
    ) -> None:
        from vllm.entrypoints.anthropic.protocol import AnthropicCountTokensRequest, AnthropicMessagesRequest
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
        from vllm.entrypoints.scale_out.token_in_token_out.protocol import GenerateRequest

        from asyncrl.generators.gateway.serving import Serving

        if config.model_config.hf_config.model_type == _HARMONY:
            problem = f"agents cannot play with models of type {_HARMONY}, whose conversations vLLM renders past the gateway"
            raise AsyncRLError(f"{problem}; use a model with a chat template, or an environment of another kind")
        self._chat, self._vocabulary = chat, int(config.model_config.get_vocab_size())
        self._serving = serving = Serving(config, renderer, chat, tool_parser, reasoning_parser)
        self._count_request = AnthropicCountTokensRequest
        self._ways = {
            Protocol.CHAT: _Way(
                ChatCompletionRequest,
                serving.chat.create_chat_completion,
                answer_messages.of_chat,
                answer_messages.of_chat_stream,
                False,
                "none",
            ),
            Protocol.MESSAGES: _Way(
                AnthropicMessagesRequest,
                serving.messages.create_messages,
                answer_messages.of_messages,
                answer_messages.of_messages_stream,
                True,
                {"type": "none"},
            ),
            Protocol.RESPONSES: _Way(
                ResponsesRequest,
                serving.responses.create_responses,
                answer_messages.of_responses,
                answer_messages.of_responses_stream,
                True,
                "none",
            ),
            Protocol.GENERATE: _Way(
                GenerateRequest,
                serving.tokens.serve_tokens,
                answer_messages.of_generate,
                answer_messages.of_generate_stream,
                False,
                "none",
            ),
        }

    @classmethod
    def of(cls, llm: "AsyncLLMEngine", chat: ChatFormat, tool_parser: str, reasoning_parser: str | None) -> "Protocols":
        """Return the protocols for the model of an engine."""
        return cls(llm.vllm_config, type(llm.renderer), chat, tool_parser, reasoning_parser)

    async def answer(self, turn: GatewayTurn, body: Mapping[str, Any]) -> Answer:
        """Answer a request with a turn.

        Raises:
            Problem: it cannot be answered.
            ComponentFailed: the engine died.
        """
        episode, protocol = turn.episode, turn.protocol
        episode.check_open()
        way = self._ways[protocol]
        limits = episode.limits
        try:
            honoured = self._settled(body, protocol, limits)
        except (TypeError, ValueError, AttributeError, KeyError):
            _validated(way.request, body)  # says what is wrong with it
            raise
        episode.note(honoured)
        if protocol is Protocol.GENERATE:
            turn.place_after(self._known(_validated(way.request, honoured.body).token_ids))
        try:
            return await self._turn(way, turn, honoured.body)
        except BaseException:
            turn.give_up()
            raise

    def _known(self, token_ids: Sequence[int]) -> Sequence[int]:
        """Return token ids, all of which the model has; its tokenizer may have fewer, and the policy samples the others, too.

        Raises:
            Problem: there is another one.
        """
        if (largest := max(token_ids)) >= self._vocabulary:
            raise Problem(Kind.REFUSED, f"there is no token {largest}; the model has {self._vocabulary}", "token_ids")
        return token_ids

    def _settled(self, body: Mapping[str, Any], protocol: Protocol, limits: GatewayLimits) -> Settled:
        most = limits.episode.max_turn_tokens
        if protocol is Protocol.GENERATE:
            return settled_sampling(body, most_tokens=most, constrained=limits.constrained)
        later = self._chat.takes_system_later
        return settled(body, protocol, most_tokens=most, constrained=limits.constrained, system_later=later)

    async def _turn(self, way: _Way, turn: GatewayTurn, body: dict[str, Any]) -> Answer:
        try:
            return await self._read(way, turn, body)
        except (Problem, ComponentFailed, asyncio.CancelledError):
            raise
        except Exception as error:
            if not turn.is_sampled:
                raise
            logger.info("the calls of a turn reach the client as text, because they cannot be read: %r", error)
            return await self._read(way, turn, body | {"tool_choice": way.no_calls})

    async def _read(self, way: _Way, turn: GatewayTurn, body: Mapping[str, Any]) -> Answer:
        """Make the answer, and add its turn to its stream."""
        from vllm.entrypoints.serve.engine.protocol import ErrorResponse

        from asyncrl.generators.gateway.empty_responses import with_message, with_message_in_stream
        from asyncrl.generators.gateway.serving import CURRENT

        CURRENT.set(turn)
        result = await self._asked(way, turn, _validated(way.request, body))
        if isinstance(result, ErrorResponse):
            raise _told(result)
        if hasattr(result, "__aiter__"):
            events = [event async for event in result]
            if turn.protocol is Protocol.RESPONSES:
                events = with_message_in_stream(events)
            chunks = [event if isinstance(event, str) else _as_event(event) for event in events]
            if turn.protocol is Protocol.GENERATE:
                chunks = [_named_in_stream(chunk) for chunk in chunks]
            if turn.failure is not None:  # vLLM has made an event of it
                raise turn.failure
            message = way.message_of_stream(chunks)
            _check_said(turn, message, body)
            return Answer(tuple(chunk.encode() for chunk in chunks), True, turn.finish(message))
        if turn.protocol is Protocol.RESPONSES:
            result = with_message(result)
        written = result.model_dump_json(exclude_none=way.omit_none)
        if turn.protocol is Protocol.GENERATE:
            written = _named(written)
        message = way.message_of(msgspec.json.decode(written))
        _check_said(turn, message, body)
        return Answer((written.encode(),), turn=turn.finish(message))

    async def _asked(self, way: _Way, turn: GatewayTurn, request: Any) -> Any:
        """Have vLLM answer; raises what ended the turn, where vLLM would tell of it in its own way."""
        from vllm.entrypoints.serve import create_error_response

        from asyncrl.generators.gateway.serving import Abandoned

        try:
            return await way.serve(request, None)
        except (Problem, ComponentFailed):
            raise
        except Abandoned:
            raise asyncio.CancelledError from None
        except Exception as error:
            if turn.is_sampled:
                raise
            raise _told(create_error_response(error)) from error

    async def count_tokens(self, episode: GatewayEpisode, body: Mapping[str, Any]) -> Answer:
        """Count the tokens of a conversation as the template writes it; a stream that it goes on from may have others."""
        from vllm.entrypoints.serve.engine.protocol import ErrorResponse

        from asyncrl.generators.gateway.serving import CURRENT

        CURRENT.set(_Counted(self._chat, str(body.get("model") or "")))
        try:
            read = counted(body, system_later=self._chat.takes_system_later)
        except (TypeError, ValueError, AttributeError, KeyError):
            _validated(self._count_request, body)  # says what is wrong with it
            raise
        result = await self._serving.messages.count_tokens(_validated(self._count_request, read), None)
        if isinstance(result, ErrorResponse):
            raise _told(result)
        return Answer((result.model_dump_json(exclude_none=True).encode(),))

    async def models(self) -> Answer:
        """List the one model that there is."""
        listed = (await self._serving.models.show_available_models()).model_dump(mode="json")
        (model,) = listed["data"]
        name = model["id"]
        pages = {"has_more": False, "first_id": name, "last_id": name}
        return Answer((msgspec.json.encode({**listed, **pages, "data": [_described(model, name)]}),))

    async def model(self, name: str) -> Answer:
        """Describe the one model that there is, by any name that clients have for it."""
        (model,) = (await self._serving.models.show_available_models()).model_dump(mode="json")["data"]
        return Answer((msgspec.json.encode(_described(model, name)),))


def _described(model: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return what vLLM says of a model as the libraries of OpenAI and of Anthropic read it."""
    made = datetime.fromtimestamp(model["created"], UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {**model, "id": name, "type": "model", "display_name": name, "created_at": made}


def _check_said(turn: GatewayTurn, message: ChatMessage, body: Mapping[str, Any]) -> None:
    """Refuse an answer that says nothing where the policy said something: a call that went wrong is text, and not lost.

    Raises:
        Unreadable: it does, and calls were looked for.
    """
    says = text_of(message.get("content")).strip() or calls_of(message)
    if turn.text.strip() and not says and body.get("tool_choice") not in _NO_CALLS:
        raise answer_messages.Unreadable("nothing is left of what the policy said")


class _Counted:
    """A conversation of which only the tokens are counted: no stream is touched."""

    def __init__(self, chat: ChatFormat, model: str) -> None:
        self.model, self._chat = model, chat

    async def prompt(
        self, messages: Sequence[ChatMessage], tools: Sequence[Mapping[str, Any]], arguments: Mapping[str, Any]
    ) -> list[int]:
        """Return the tokens as the template writes the conversation."""
        specs = [spec_of(tool) for tool in tools]
        return await rendered(self._chat, messages, specs, self._chat.arguments_read(arguments, specs))

    async def sample(self, most: int, stop_strings: Sequence[str], *, skip_special: bool) -> SampledText:
        """Never called."""
        raise NotImplementedError("tokens are counted, and none is sampled")


def _as_event(event: Any) -> str:
    """Return an event of the Responses protocol as it is sent."""
    return f"event: {event.type}\ndata: {event.model_dump_json()}\n\n"


def _named(answer: str) -> str:
    """Return an answer in token ids whose log-probabilities name their tokens as earlier releases of vLLM did, too."""
    told = msgspec.json.decode(answer)
    for choice in told["choices"]:
        for entry in (choice.get("logprobs") or {}).get("content") or ():
            for each in (entry, *entry.get("top_logprobs", ())):
                each["token"] = f"token_id:{each['token_id']}"
    return msgspec.json.encode(told).decode()


def _named_in_stream(chunk: str) -> str:
    event, data = chunk.partition("data: ")[1:]
    return chunk if not data.startswith("{") or '"choices"' not in data else f"{event}{_named(data.strip())}\n\n"


def _validated(kind: Any, body: Mapping[str, Any]) -> Any:
    """Make vLLM's request of a body.

    Raises:
        Problem: it is none.
    """
    from pydantic import ValidationError
    from vllm.entrypoints.serve import create_error_response

    try:
        return kind.model_validate(dict(body))
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        first = next((each for each in found if each["type"] != "is_instance_of"), found[0])  # one of Python's, not of JSON's
        place = ".".join(map(str, first["loc"]))
        raise Problem(Kind.REFUSED, f"{place}: {first['msg']}"[:_MOST_SHOWN], place) from error
    except Exception as error:  # vLLM's own kinds, some of which are no ValueErrors
        raise _told(create_error_response(error)) from error


def _told(response: "ErrorResponse") -> Problem:
    """Return the problem of which vLLM tells."""
    error = response.error
    kind = {400: Kind.REFUSED, 404: Kind.NOT_FOUND}.get(error.code, Kind.FAILED)
    return Problem(kind, error.message, error.param or "")
