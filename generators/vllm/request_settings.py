"""The settings of a request to vLLM: everything beside its tokens.

What always holds: what is returned is shared by many requests, and nobody changes it.
"""

from functools import lru_cache
from typing import TYPE_CHECKING

from asyncrl.core.adapters import adapter_id
from asyncrl.core.trajectory import Sampling
from asyncrl.generators.vllm.text_stops import STOP_TEXTS

if TYPE_CHECKING:
    from vllm import SamplingParams
    from vllm.lora.request import LoRARequest
    from vllm.v1.engine.input_processor import InputProcessor


@lru_cache
def adapter_request(slot: int) -> "LoRARequest":
    """Return vLLM's name of the adapter in ``slot``. Its path is never read: the slots are filled by publications."""
    from vllm.lora.request import LoRARequest

    return LoRARequest(f"slot {slot}", adapter_id(slot), "published")


@lru_cache
def scoring_params() -> "SamplingParams":
    """Return how a request is computed whose tokens are given."""
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    # vLLM samples at least one token. The prompt's log-probabilities are at temperature 1, whatever that of the sampling.
    return SamplingParams(
        max_tokens=1,
        prompt_logprobs=0,
        logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )


def sampling_params(
    processor: "InputProcessor", max_tokens: int, sampling: Sampling, stop_token_ids: tuple[int, ...]
) -> "SamplingParams":
    """Return how a turn is sampled, as vLLM's front end checks and completes it. Requests share it, so it must not be changed."""
    from vllm import SamplingParams
    from vllm.inputs.engine import tokens_input
    from vllm.sampling_params import RequestOutputKind

    # Requests have no seed of their own: vLLM's CPU sampler ignores it. The engine's seed makes runs repeatable.
    params = SamplingParams(
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        min_p=sampling.min_p,
        max_tokens=max_tokens,
        stop_token_ids=[*stop_token_ids, *sampling.stop_token_ids],
        ignore_eos=True,
        logprobs=0,
        flat_logprobs=True,
        detokenize=False,
        output_kind=RequestOutputKind.FINAL_ONLY,
        extra_args={STOP_TEXTS: list(texts)} if (texts := sampling.stop_texts) else None,
    )
    return processor.process_inputs("params", tokens_input([0]), params, ("generate",)).sampling_params
