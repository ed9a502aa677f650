"""vLLM's own serving classes, reached into at two places, so that no protocol is written here. Importing this imports vLLM.

They make an answer of a request in four steps: they turn its conversation into token ids, have an engine sample, read text, calls
and reasoning from what was sampled, and write that down as the protocol has it. The first two are replaced: ids come from the
episode's token streams, and the turn from its sampler. What always holds: for each request that is answered, both ask the
:class:`Turn` that is current in its task, and what vLLM would render or sample itself is never used.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Protocol

from vllm.config import VllmConfig
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.entrypoints.openai.models.protocol import BaseModelPath
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.entrypoints.openai.responses.serving import OpenAIServingResponses
from vllm.entrypoints.scale_out.token_in_token_out.serving import ServingTokens
from vllm.inputs.engine import TokensInput
from vllm.logprobs import Logprob
from vllm.lora.request import LoRARequest
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.renderers import BaseRenderer
from vllm.renderers.online_renderer import OnlineRenderer
from vllm.sampling_params import SamplingParams
from vllm.tokenizers.hf import get_cached_tokenizer

from asyncrl.generators.chat_format import ChatFormat
from asyncrl.generators.gateway.sampled_text import SampledText

NAME = "policy"
"""The name under which the model is listed. Clients may ask for any other; it is the name of a role."""


class Turn(Protocol):
    """The request that is being answered."""

    @property
    def model(self) -> str:
        """The model that the client asked for."""
        ...

    async def prompt(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], arguments: Mapping[str, Any]
    ) -> list[int]:
        """Return what the engine is to go on from."""
        ...

    async def sample(self, most: int, stop_strings: Sequence[str], *, skip_special: bool) -> SampledText:
        """Have the turn sampled."""
        ...


CURRENT: ContextVar[Turn] = ContextVar("the request that is being answered")


class Abandoned(Exception):
    """A request was cancelled while it was sampled: vLLM's classes would make an answer of the cancellation."""


class _Renderer(OnlineRenderer):
    """Gives token ids by vLLM's own door for them, in place of rendering."""

    async def preprocess_chat(
        self, request: Any, messages: list[Any], *defaults: Any, **settings: Any
    ) -> tuple[list[Any], list[Any]]:
        """Return the ids, and have vLLM's parser make its changes to the request, as for all others."""
        arguments = request.build_chat_params(None, "string").chat_template_kwargs
        given = {name: value for name, value in arguments.items() if value is not None}
        ids = await CURRENT.get().prompt(messages, settings.get("tool_dicts") or (), given)
        request.kv_transfer_params = {"prompt_token_ids": ids}
        _, inputs = await super().preprocess_chat(request, [], *defaults, **settings)
        if inputs[0]["prompt_token_ids"] != ids:
            raise AssertionError("vLLM rendered a request whose token ids were given")
        return [], inputs


class _Models(OpenAIServingModels):
    """Takes any name for the one model that there is."""

    def model_name(self, lora_request: LoRARequest | None = None) -> str:
        """Return the name that the client asked for."""
        return CURRENT.get().model

    def is_base_model(self, model_name: str) -> bool:
        """Return that there is such a model."""
        return True


class _Engine:
    """What vLLM's serving classes take for an engine. ``generate`` is all that they ask it for a turn."""

    errored = False
    input_processor = None

    def __init__(self, config: VllmConfig, renderer: BaseRenderer) -> None:
        self.vllm_config, self.model_config, self.renderer = config, config.model_config, renderer

    def check_admission(self, n: int = 1, request_id: str | None = None) -> None:
        """Let all requests in."""

    async def generate(
        self, prompt: TokensInput, sampling_params: SamplingParams, request_id: str, **_: Any
    ) -> AsyncIterator[RequestOutput]:
        """Yield the turn of the current request, whole."""
        stop = sampling_params.stop
        try:
            turn = await CURRENT.get().sample(
                sampling_params.max_tokens or 0,
                [stop] if isinstance(stop, str) else stop or (),
                skip_special=sampling_params.skip_special_tokens,
            )
        except asyncio.CancelledError:
            raise Abandoned from None
        told = zip(turn.token_ids, turn.logprobs, strict=True)
        output = CompletionOutput(
            index=0,
            text=turn.text,
            token_ids=turn.token_ids,
            cumulative_logprob=None,
            logprobs=None if sampling_params.logprobs is None else [{token: Logprob(logprob)} for token, logprob in told],
            finish_reason="stop" if turn.stopped else "length",
            stop_reason=turn.stop_string,
        )
        yield RequestOutput(request_id, None, prompt["prompt_token_ids"], None, [output], True)


class Serving:
    """vLLM's serving classes for one model.

    Args:
        config: the engine's configuration.
        renderer: class of the engine's renderer.
        reasoning_parser: name of vLLM's parser of reasoning; None if turns hold none.
    """

    def __init__(
        self, config: VllmConfig, renderer: type[BaseRenderer], chat: ChatFormat, tool_parser: str, reasoning_parser: str | None
    ) -> None:
        # vLLM logs a traceback for each turn that it cannot read, and a model in training writes thousands of those.
        for name in ("vllm.tool_parsers", "vllm.parser", "vllm.reasoning", "vllm.entrypoints"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        engine: Any = _Engine(config, renderer(config, get_cached_tokenizer(chat.tokenizer)))
        self.models = _Models(engine, [BaseModelPath(NAME, config.model_config.model)])
        shared: dict[str, Any] = {
            "request_logger": None,
            "chat_template": None,
            "chat_template_content_format": "string",
            "enable_auto_tools": True,
            "tool_parser": tool_parser,
        }
        online = _Renderer(config.model_config, engine.renderer, reasoning_parser=reasoning_parser, **shared)
        shared |= {"online_renderer": online, "reasoning_parser": reasoning_parser or ""}
        self.chat = OpenAIServingChat(engine, self.models, "assistant", **shared)
        self.tokens = ServingTokens(engine, self.models, online, request_logger=None)
        self.responses = OpenAIServingResponses(engine, self.models, **shared)
        # What it is else set to would be found out by rendering prompts with the renderer above.
        self.messages = AnthropicServingMessages(engine, self.models, "assistant", disabled_thinking_effort="none", **shared)
