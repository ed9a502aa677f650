"""Hands vLLM's engine process the requests for many turns in one message.

vLLM's front end sends a message for each request. Sending, receiving and decoding it takes both processes longer than much of
what they do for a turn. What always holds: a request gets the answer that it would get if vLLM's front end had sent it alone.
"""

import time
from collections.abc import Iterable
from concurrent.futures import Future
from copy import copy
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest
    from vllm.v1.engine import EngineCoreRequest
    from vllm.v1.engine.core import EngineCoreProc

ADD_TURNS = "add_turns"
"""The name under which vLLM's engine process has :func:`add_turns` as a method."""

_PAST_WAVE = -1
"""Data-parallel ranks compute in waves, each until none has work. One that gets a request of a past wave wakes the others."""


class TurnSettings(NamedTuple):
    """What the requests of many turns have in common.

    Attributes:
        params: how tokens are sampled, as vLLM's front end completes it. Requests share it, so it never changes.
        adapter: the adapter that samples; None if the model's own weights do.
        salt: keys and values are only found in the cache by requests with the salt of those that computed them.
    """

    params: "SamplingParams"
    adapter: "LoRARequest | None"
    salt: str


class TurnRequest(NamedTuple):
    """One request.

    Attributes:
        token_ids: what the turn follows.
        known_experts: of how many of them nobody needs the experts.
    """

    name: str
    token_ids: list[int]
    settings: TurnSettings
    known_experts: int = 0


_encoder = msgspec.msgpack.Encoder()


def encode_turns(requests: Iterable[TurnRequest]) -> bytes:
    """Encode requests for :func:`add_turns`. Settings with the same objects are sent once."""
    settings: list[TurnSettings] = []
    numbers: dict[tuple[int, int, str], int] = {}
    named: list[tuple[str, list[int], int, int]] = []
    for name, token_ids, (params, adapter, salt), known_experts in requests:
        number = numbers.setdefault((id(params), id(adapter), salt), len(settings))
        if number == len(settings):
            settings.append(TurnSettings(params, adapter, salt))
        named.append((name, token_ids, number, known_experts))
    return _encoder.encode((settings, named))


@cache
def _decoder() -> "msgspec.msgpack.Decoder[Any]":
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest

    settings = tuple[SamplingParams, LoRARequest | None, str]
    return msgspec.msgpack.Decoder(tuple[list[settings], list[tuple[str, list[int], int, int]]])


def vllm_request(request: TurnRequest, client: int) -> "EngineCoreRequest":
    """Return ``request`` as front end ``client`` of vLLM sends it."""
    from vllm.v1.engine import EngineCoreRequest

    params, adapter, salt = request.settings
    if request.known_experts:
        params = copy(params)
        params.routed_experts_prompt_start = request.known_experts
    return EngineCoreRequest(
        request_id=request.name,
        prompt_token_ids=request.token_ids,
        mm_features=None,
        sampling_params=params,
        pooling_params=None,
        arrival_time=time.time(),
        lora_request=adapter,
        cache_salt=salt,
        data_parallel_rank=None,
        client_index=client,
        current_wave=_PAST_WAVE,
    )


def add_turns(core: "EngineCoreProc", encoded: bytes, client: int) -> "Future[None]":
    """Add requests to those of this engine, as if front end ``client`` had sent each of them; see :func:`encode_turns`.

    Returns:
        A future that never ends, so that vLLM sends no answer to this call: the answers to the requests are enough.
    """
    several, named = _decoder().decode(encoded)
    for name, token_ids, number, known_experts in named:
        request = vllm_request(TurnRequest(name, token_ids, TurnSettings(*several[number]), known_experts), client)
        try:
            ready = core.preprocess_add_request(request)
        except Exception:  # noqa: BLE001 - as vLLM does: the request ends with an error, and the others go on
            core._handle_request_preproc_error(request)
            continue
        core.add_request(*ready)
    return Future()
