"""vLLM's serving classes are what they were: where the gateway reaches into them, and what a teacher's server says."""

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from chat_tokenizers import make_tokenizer
from vllm.engine.protocol import EngineClient
from vllm.entrypoints.anthropic.serving import AnthropicServingMessages
from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat
from vllm.entrypoints.openai.completion.protocol import CompletionRequest, CompletionResponse, CompletionResponseChoice
from vllm.entrypoints.openai.models.serving import OpenAIServingModels
from vllm.entrypoints.openai.responses.serving import OpenAIServingResponses
from vllm.entrypoints.scale_out.token_in_token_out.serving import ServingTokens
from vllm.entrypoints.serve.engine.protocol import ModelCard, ModelList, UsageInfo
from vllm.entrypoints.serve.tokenize.protocol import DetokenizeRequest, DetokenizeResponse
from vllm.logprobs import Logprob
from vllm.renderers.hf import HfRenderer
from vllm.renderers.online_renderer import OnlineRenderer

from asyncrl.core.errors import AsyncRLError
from asyncrl.core.recipe.teacher import TeacherConfig
from asyncrl.envs.secrets import Secrets
from asyncrl.generators.chat_format import ChatFormat
from asyncrl.generators.gateway.protocols import Protocols
from asyncrl.run.teacher.remote_teacher import RemoteTeacher, check_server

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
    assert parameters(ServingTokens.__init__)[:4] == ["engine_client", "models", "online_renderer", "request_logger"]
    assert set(parameters(OnlineRenderer.__init__)) >= SHARED


def test_what_vllm_s_classes_ask_of_an_engine() -> None:
    """A method more that they call would be missing where they get an engine of ours."""
    sources = "".join(
        inspect.getsource(method)
        for serving in (OpenAIServingChat, AnthropicServingMessages, OpenAIServingResponses, ServingTokens)
        for each in serving.__mro__[:-1]
        if each.__module__.startswith("vllm.entrypoints")
        for method in vars(each).values()
        if inspect.isfunction(method)
    )
    asked = set(re.findall(r"self\.engine_client\.(\w+)", sources))
    assert asked >= {"generate", "errored", "check_admission", "vllm_config"}
    of_others = {"dead_error", "notify_kv_transfer_request_rejected", "input_processor"}  # dead, connected and searching engines
    assert asked <= {"generate", "errored", "check_admission", "vllm_config", *of_others}


def test_a_model_that_vllm_renders_past_the_gateway_is_refused() -> None:
    config: Any = SimpleNamespace(model_config=SimpleNamespace(hf_config=SimpleNamespace(model_type="gpt_oss")))
    with pytest.raises(AsyncRLError, match="agents cannot play with models of type gpt_oss"):
        Protocols(config, HfRenderer, ChatFormat(make_tokenizer()), "openai", None)


async def test_a_teacher_is_asked_in_vllm_s_own_words_and_its_answers_are_understood(tmp_path: Path) -> None:
    """All bodies are read and written by the classes with which vLLM's server does it."""
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(tmp_path)

    async def models(request: web.Request) -> web.Response:
        return web.json_response(text=ModelList(data=[ModelCard(id="teacher", max_model_len=65)]).model_dump_json())

    async def detokenize(request: web.Request) -> web.Response:
        asked = DetokenizeRequest.model_validate_json(await request.read())
        return web.json_response(text=DetokenizeResponse(prompt=tokenizer.decode(asked.tokens)).model_dump_json())

    async def complete(request: web.Request) -> web.Response:
        asked = CompletionRequest.model_validate_json(await request.read())
        assert not asked.model_extra, "vLLM ignores what it does not know"
        assert (asked.prompt_logprobs, asked.add_special_tokens, asked.max_tokens) == (0, False, 1)
        given = [None, *({token: Logprob(-float(token), rank=3, decoded_token="x")} for token in asked.prompt[1:])]
        choice = CompletionResponseChoice(index=0, text="x", prompt_logprobs=given)
        return web.json_response(text=CompletionResponse(model="teacher", choices=[choice], usage=UsageInfo()).model_dump_json())

    application = web.Application()
    application.add_routes([web.get("/v1/models", models), web.post("/detokenize", detokenize)])
    application.add_routes([web.post("/v1/completions", complete)])
    async with TestServer(application) as server:
        teacher = TeacherConfig(url=str(server.make_url("/v1")))
        await check_server(teacher, Secrets(), tmp_path, 64, 60.0)
        found = await RemoteTeacher(teacher, Secrets(), "generator-0", 60.0).logprobs(np.array([5, 7, 9], np.int32))
    assert found.tolist() == [-7.0, -9.0]
