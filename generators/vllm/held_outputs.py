"""Holds back, in vLLM's engine process, what was sampled for a request until the request is over.

After each step vLLM's process sends its front end a message with the new token of every request, even of requests that only want
their final output. For a small model, writing and reading these messages takes longer than much of what they tell about.

What always holds: a request that nobody cancels gets the tokens, log-probabilities and versions that it would get without this; a
message never has tokens of two versions of the weights; what is more than tokens with their log-probabilities is sent at once.
"""

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

if TYPE_CHECKING:
    from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
    from vllm.v1.engine.core import EngineCoreProc

HOLD_OUTPUTS = "hold_outputs"
"""The name under which vLLM's engine process has :func:`hold_outputs` as a method."""

_MAY_WAIT = {
    *("request_id", "new_token_ids", "new_logprobs", "finish_reason", "stop_reason", "prefill_stats", "trace_headers"),
    "routed_experts",
}
"""Fields of an output of a request that goes on which may wait. If another field is set, the output is sent."""


def hold_outputs(core: "EngineCoreProc") -> None:
    """Hold back the outputs of this engine from its next step on. Meant for one call, before the first request."""
    held, step = HeldOutputs(core), core.step_fn

    def holding() -> Any:
        messages, computed = step()
        return (held.remaining(messages) if messages else messages), computed

    core.step_fn = holding


class HeldOutputs:
    """The outputs of one engine that are held back, by client and request."""

    def __init__(self, core: "EngineCoreProc") -> None:
        from vllm.sampling_params import RequestOutputKind
        from vllm.v1.engine import EngineCoreOutput

        self._core, self._final_only = core, RequestOutputKind.FINAL_ONLY
        self._held: defaultdict[int, dict[str, list[EngineCoreOutput]]] = defaultdict(dict)
        self._version: str | None = None
        fields = msgspec.structs.fields(EngineCoreOutput)
        self._urgent = [(each.name, each.default) for each in fields if each.name not in _MAY_WAIT]

    def remaining(self, messages: "dict[int, EngineCoreOutputs]") -> "dict[int, EngineCoreOutputs]":
        """Hold back what may wait of the messages of one step, by client; returns those that still say something."""
        for message in messages.values():
            if message.weight_version != self._version:
                self._send_all()
                self._version = message.weight_version
        for client, message in messages.items():
            held = self._held[client]
            message.outputs = [whole for output in message.outputs if (whole := self._whole(held, output)) is not None]
        self._forget_cancelled()
        return {client: message for client, message in messages.items() if message.outputs or _says_more(message)}

    def _whole(self, held: "dict[str, list[EngineCoreOutput]]", output: "EngineCoreOutput") -> "EngineCoreOutput | None":
        """Return the output with what was held back of its request; None if it is held back itself."""
        if output.finish_reason is None and self._may_wait(output):
            held.setdefault(output.request_id, []).append(output)
            return None
        return _joined([*held.pop(output.request_id, ()), output])

    def _may_wait(self, output: "EngineCoreOutput") -> bool:
        request = self._core.scheduler.requests.get(output.request_id)
        if request is None or request.sampling_params is None or request.sampling_params.output_kind != self._final_only:
            return False
        return all(getattr(output, name) is default for name, default in self._urgent)

    def _send_all(self) -> None:
        """Send all that is held back, which the version before the newest sampled."""
        from vllm.v1.engine import EngineCoreOutputs

        for client, held in self._held.items():
            if held:
                outputs = [_joined(each) for each in held.values()]
                self._core.output_queue.put_nowait((client, EngineCoreOutputs(outputs=outputs, weight_version=self._version)))
                held.clear()

    def _forget_cancelled(self) -> None:
        """Forget requests that were cancelled, of which vLLM puts out nothing. There are few, so they may stay for a while."""
        requests = self._core.scheduler.requests
        for held in self._held.values():
            if len(held) > len(requests):
                for name in held.keys() - requests.keys():
                    del held[name]


def _joined(outputs: "Sequence[EngineCoreOutput]") -> "EngineCoreOutput":
    """Make one output of several that follow each other."""
    from vllm.v1.outputs import LogprobsLists

    *earlier, last = outputs
    if not earlier:
        return last
    last.new_token_ids = [token for each in outputs for token in each.new_token_ids]
    last.prefill_stats = outputs[0].prefill_stats
    found = [each.new_logprobs[:3] for each in outputs if each.new_logprobs is not None]
    last.new_logprobs = LogprobsLists(*map(np.concatenate, zip(*found, strict=True))) if found else None
    experts = [each.routed_experts for each in outputs if each.routed_experts is not None]
    last.routed_experts = np.concatenate(experts) if experts else None
    return last


def _says_more(message: "EngineCoreOutputs") -> bool:
    """Whether a message without outputs says anything else."""
    others = (
        message.scheduler_stats,
        message.utility_output,
        message.finished_requests,
        message.wave_complete,
        message.start_wave,
    )
    return any(each is not None for each in others)
