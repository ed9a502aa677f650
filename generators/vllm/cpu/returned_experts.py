"""Lets an engine on a CPU say which experts it sent tokens to (``enable_return_routed_experts``).

vLLM has all that is needed, but for one end: of its two model runners, the older one, which is the one that runs on CPUs, does
not hand on what the routers chose. What always holds: the other end, which says of which request and token a row is, and keeps
the rows of cached prefixes, is vLLM's own.
"""

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
from vllm.config import VllmConfig
from vllm.distributed.aux_output_connector.worker import AuxOutputWorkerConnector, get_aux_output_connector
from vllm.engine.arg_utils import AsyncEngineArgs

if TYPE_CHECKING:
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import ModelRunnerOutput


class TellingConfig(VllmConfig):  # type: ignore[misc]
    """vLLM's configuration of an engine that says which experts it chose. vLLM would refuse it with its older model runner."""

    def _verify_aux_output_compatibility(self) -> None:
        """Check nothing: what an engine on a CPU cannot do, the recipe's rules have refused."""


class TellingEngineArgs(AsyncEngineArgs):  # type: ignore[misc]
    """Arguments of an engine that says which experts it chose."""

    def create_engine_config(self, *arguments: Any, **options: Any) -> TellingConfig:
        """Return the configuration."""
        config: TellingConfig = super().create_engine_config(*arguments, **options)
        config.aux_output_config.enable_return_routed_experts = True
        config.__class__ = TellingConfig  # the engine's processes check what they are sent once more
        return config


class ToldExperts:
    """Notes what the routers of one worker choose in each step, and adds it to the step's output.

    Args:
        connector: vLLM's, which binds itself to the routers and keeps rows until requests are over.
        runner: vLLM's model runner, whose requests the rows are of.
    """

    def __init__(self, connector: AuxOutputWorkerConnector, runner: Any) -> None:
        self._connector, self._runner = connector, runner
        self._pending: Any = None

    @classmethod
    def of(cls, config: VllmConfig, runner: Any, cache: "KVCacheConfig") -> "ToldExperts | None":
        """Begin to note experts; None if nobody wants to know."""
        if not config.aux_output_config.enabled:
            return None
        connector = get_aux_output_connector(model=runner.get_model(), vllm_config=config, kv_cache_config=cache)
        return cls(connector, runner)

    def begin(self, step: "SchedulerOutput") -> None:
        """Take in which requests have begun and ended."""
        self._connector.begin_step(step.aux_output_connector_metadata)

    def computed(self, step: "SchedulerOutput") -> None:
        """Keep what the routers chose in the step that was just computed."""
        if not step.total_num_scheduled_tokens:
            return
        batch = self._runner.input_batch
        tokens = [step.num_scheduled_tokens[name] for name in batch.req_ids]
        described = SimpleNamespace(
            req_ids=batch.req_ids,
            query_start_loc_np=np.concatenate([[0], np.cumsum(tokens)]),
            num_computed_tokens_np=batch.num_computed_tokens_cpu[: len(tokens)].copy(),
        )
        self._pending = self._connector.prepare_output(described)

    def added_to(self, output: "ModelRunnerOutput") -> "ModelRunnerOutput":
        """Add what was kept to the output of its step."""
        pending, self._pending = self._pending, None
        if pending is not None:
            sampled = np.array([len(output.sampled_token_ids[output.req_id_to_index[name]]) for name in pending.request_ids])
            pending.enqueue_cpu_copy(sampled, np.zeros_like(sampled))  # nothing is drafted, so nothing is rejected
            output.aux_output_connector_output = pending.process_output()
        return output
