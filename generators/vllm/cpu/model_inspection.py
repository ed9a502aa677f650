"""Has vLLM look at a model's class in this process, not in one of its own that it starts for that, on a CPU.

It does so to keep its front end from initialising CUDA. On a CPU there is nothing to keep it from, an import of vLLM is saved,
and that process would not know of what :mod:`asyncrl.core.process.torch_companions` hides.
"""


def inspect_models_here() -> None:
    """Prepare this process if vLLM uses a CPU; imports vLLM."""
    from vllm.model_executor.models import registry
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        registry._run_in_subprocess = lambda look: look()
