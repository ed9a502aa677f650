"""vLLM's OpenAI server as a program: the command `vllm` does not start where the package has another name, as the build for CPUs
does, nor beside packages that :mod:`asyncrl.core.process.torch_companions` hides."""

from runpy import run_module

from asyncrl.generators.vllm.cpu.model_inspection import inspect_models_here

if __name__ == "__main__":
    inspect_models_here()
    run_module("vllm.entrypoints.openai.api_server", run_name="__main__")
