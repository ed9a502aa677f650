"""Measures, in vLLM's engine process, how much of the steps' time went into prompts and how much into sampled tokens.

vLLM computes both in one step. So the time of a step is divided in proportion to the tokens that it computed of each. A prompt's
tokens that were found in the cache are not computed, and do not count.
"""

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.engine.core import EngineCoreProc

_ATTRIBUTE = "_asyncrl_steps"


class EngineSteps:
    """Seconds of an engine's steps since :meth:`of` was called for the first time.

    Attributes:
        prefill_seconds: the part of prompts, and of requests computed again after they lost their cache.
        decode_seconds: the part of sampled tokens.
    """

    def __init__(self) -> None:
        self.prefill_seconds = self.decode_seconds = 0.0
        self._prompt_tokens = self._tokens = 0

    @classmethod
    def of(cls, core: "EngineCoreProc") -> "EngineSteps":
        """Return the measurement of this engine; the first call begins it."""
        found: EngineSteps | None = getattr(core, _ATTRIBUTE, None)
        if found is None:
            found = cls()
            found._measure(core)
            setattr(core, _ATTRIBUTE, found)
        return found

    def _measure(self, core: "EngineCoreProc") -> None:
        schedule, step = core.scheduler.schedule, core.step_fn

        def counting(*arguments: Any, **options: Any) -> "SchedulerOutput":
            scheduled = schedule(*arguments, **options)
            self._prompt_tokens, self._tokens = prompt_tokens(scheduled), scheduled.total_num_scheduled_tokens
            return scheduled

        def timed() -> Any:
            self._tokens = 0
            began = time.monotonic()
            outcome = step()
            if self._tokens:
                seconds = time.monotonic() - began
                prefill = seconds * self._prompt_tokens / self._tokens
                self.prefill_seconds += prefill
                self.decode_seconds += seconds - prefill
            return outcome

        core.scheduler.schedule = counting
        core.step_fn = timed


def prompt_tokens(scheduled: "SchedulerOutput") -> int:
    """Count the tokens of prompts that a step computes, among ``scheduled.num_scheduled_tokens``."""
    tokens, going_on = scheduled.num_scheduled_tokens, scheduled.scheduled_cached_reqs
    of_prompts: int = sum(tokens[request.req_id] for request in scheduled.scheduled_new_reqs)
    for request_id, sampled in zip(going_on.req_ids, going_on.num_output_tokens, strict=True):
        if not sampled or request_id in going_on.resumed_req_ids:
            of_prompts += tokens[request_id]
    return of_prompts
