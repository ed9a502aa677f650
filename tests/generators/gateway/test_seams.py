"""The two places at which vLLM's serving classes are reached into are what they were when the gateway was written."""

import inspect
import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from chat_tokenizers import make_tokenizer
from vllm.engine.protocol import EngineClient
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.entrypoints.openai.responses.serving import OpenAIServingResponses
from vllm.renderers.hf import HfRenderer
from vllm.renderers.online_renderer import OnlineRenderer

from asyncrl.core.errors import AsyncRLError
from generators.chat_format import ChatFormat
from generators.gateway.protocols import Protocols

SHARED = {
    "request_logger",
    "chat_template",
    "chat_template_content_format",
    "enable_auto_tools",
    "tool_parser",
    "reasoning_parser",
}


def parameters(function: Callable[..., Any]) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name != "self"]


def test_vllm_is_reached_into_where_it_was() -> None:
    assert parameters(OnlineRenderer.preprocess_chat) == [
        *("request", "messages", "default_template", "default_template_content_format", "default_template_kwargs"),
        *("tool_dicts", "parser", "skip_mm_cache"),
    ]
    assert parameters(EngineClient.generate)[:3] == ["prompt", "sampling_params", "request_id"]
    assert parameters(OpenAIServingModels.model_name) == ["lora_request"]
    assert parameters(OpenAIServingModels.is_base_model) == ["model_name"]


@pytest.mark.parametrize("serving", [OpenAIServingChat, AnthropicServingMessages])
def test_what_vllm_s_classes_are_made_with(serving: type) -> None:
    made = parameters(serving.__init__)
    assert made[:3] == ["engine_client", "models", "response_role"]
    assert {*SHARED, "online_renderer"} <= set(made)
    assert {*SHARED, "online_renderer"} <= set(parameters(OpenAIServingResponses.__init__))
    assert set(parameters(OnlineRenderer.__init__)) >= SHARED


def test_what_vllm_s_classes_ask_of_an_engine() -> None:
    """A method more that they call would be missing where they get an engine of ours."""
    sources = "".join(
        inspect.getsource(method)
        for serving in (OpenAIServingChat, AnthropicServingMessages, OpenAIServingResponses)
        for each in serving.__mro__[:-1]
        if each.__module__.startswith("vllm.entrypoints")
        for method in vars(each).values()
        if inspect.isfunction(method)
    )
    asked = set(re.findall(r"self\.engine_client\.(\w+)", sources))
    assert asked >= {"generate", "errored", "check_admission"}
    of_others = {"dead_error", "notify_kv_transfer_request_rejected", "input_processor"}  # dead, connected and searching engines
    assert asked <= {"generate", "errored", "check_admission", *of_others}


def test_a_model_that_vllm_renders_past_the_gateway_is_refused() -> None:
    config: Any = SimpleNamespace(model_config=SimpleNamespace(hf_config=SimpleNamespace(model_type="gpt_oss")))
    with pytest.raises(AsyncRLError, match="agents cannot play with models of type gpt_oss"):
        Protocols(config, HfRenderer, ChatFormat(make_tokenizer()), "openai", None)
