"""Measures, in vLLM's engine process, how much of the steps' time went into prompts and how much into sampled tokens.

vLLM computes both in one step. What such a step takes longer than steps that only sampled for about as many requests belongs to
its prompts. Until there was a step that only sampled, the time is divided in proportion to the tokens. A prompt's tokens that
were found in the cache are not computed, and do not count.

For whoever wants to know how long a step of other sizes would take, sums of products are kept
(:mod:`asyncrl.core.measures.step_moments`).

On a GPU vLLM schedules a step before it has the result of the one before. So the time between two results is that of the step
whose result came second.
"""

import time
from collections import deque
from typing import TYPE_CHECKING, Any

from asyncrl.core.measures.step_moments import PAIRS, add_step

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.engine.core import EngineCoreProc

_ATTRIBUTE = "_asyncrl_steps"
_NEWEST = 0.1
"""The weight of the newest step that only sampled, in the usual time of such steps."""


class EngineSteps:
    """Seconds of an engine's steps since :meth:`measuring` was called for the first time.

    Attributes:
        prefill_seconds: the part of prompts, and of requests computed again after they lost their cache.
        decode_seconds: the part of sampled tokens.
        moments: sums over all steps, in the order of :data:`asyncrl.core.measures.step_moments.PAIRS`.
    """

    def __init__(self) -> None:
        self.prefill_seconds = self.decode_seconds = 0.0
        self.moments = [0.0] * len(PAIRS)
        self._scheduled: deque[tuple[int, int, int]] = deque()
        """Prompt tokens, all tokens, and tokens computed before, of each step that has no result yet, oldest first."""
        self._result_at = self._cpu_at = 0.0
        self._sampling_s: dict[int, float] = {}
        """The usual time of steps that only sampled, by the binary length of the number of requests."""

    @classmethod
    def measuring(cls, core: "EngineCoreProc") -> "EngineSteps":
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
            context = sum(scheduled.scheduled_cached_reqs.num_computed_tokens)
            self._scheduled.append((prompt_tokens(scheduled), scheduled.total_num_scheduled_tokens, context))
            return scheduled

        def timed() -> Any:
            began = self._result_at if self._scheduled else time.monotonic()
            cpu_began = self._cpu_at if self._scheduled else time.process_time()
            outcome = step()
            if not self._scheduled:  # there was nothing to do
                return outcome
            if outcome[0] is None:  # another step is scheduled before the result of this one is waited for
                self._result_at, self._cpu_at = began, cpu_began
                return outcome
            of_prompts, tokens, context = self._scheduled.popleft()
            self._result_at, self._cpu_at = time.monotonic(), time.process_time()
            if tokens:
                seconds, sampled = self._result_at - began, tokens - of_prompts
                self._divide(seconds, of_prompts, sampled)
                add_step(self.moments, (1, of_prompts, sampled, context, seconds, self._cpu_at - cpu_began))
            return outcome

        core.scheduler.schedule = counting
        core.step_fn = timed

    def _divide(self, seconds: float, prompts: int, sampled: int) -> None:
        """Divide the time of a step that computed this many tokens of prompts, and this many for requests that sample."""
        size = sampled.bit_length()
        if not prompts:
            usual = self._sampling_s.get(size, seconds)
            self._sampling_s[size] = usual + _NEWEST * (seconds - usual)
            decode = seconds
        elif not sampled:
            decode = 0.0
        elif self._sampling_s:
            nearest = min(self._sampling_s, key=lambda known: abs(known - size))
            decode = min(seconds, self._sampling_s[nearest])
        else:
            decode = seconds * sampled / (prompts + sampled)
        self.decode_seconds += decode
        self.prefill_seconds += seconds - decode


def prompt_tokens(scheduled: "SchedulerOutput") -> int:
    """Count the tokens of prompts that a step computes, among ``scheduled.num_scheduled_tokens``."""
    tokens, going_on = scheduled.num_scheduled_tokens, scheduled.scheduled_cached_reqs
    of_prompts: int = sum(tokens[request.req_id] for request in scheduled.scheduled_new_reqs)
    for request_id, sampled in zip(going_on.req_ids, going_on.num_output_tokens, strict=True):
        if not sampled or request_id in going_on.resumed_req_ids:
            of_prompts += tokens[request_id]
    return of_prompts
