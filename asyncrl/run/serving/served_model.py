"""A model as vLLM's OpenAI server serves it: its folder, and the command line of the server."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.evaluation.found_model import EvaluatedModel, Weights, find_model, recipe_that_trained
from asyncrl.run.evaluation.version_export import export_version, model_folder
from asyncrl.run.nodes.machine import Machine
from asyncrl.run.recipe.compose import compose_for, quoted
from asyncrl.run.views.live_view import LiveView

KEY_VARIABLE = "VLLM_API_KEY"
"""The environment variable that vLLM's server takes its key from."""
_MODULE = "asyncrl.run.serving.openai_server"


class ServedModel(msgspec.Struct, frozen=True):
    """A model that can be served.

    Attributes:
        name: what clients call it.
        folder: its Hugging Face folder.
        recipe: the recipe that trained it, or one that names it: it says how the model's calls and thoughts are read.
        trained: whether a run trained it, so that its recipe limits its context.
        is_temporary: whether the folder was made for this purpose, and will be removed.
    """

    name: str
    folder: Path
    recipe: Recipe
    trained: bool
    is_temporary: bool = False

    def arguments(self) -> list[str]:
        """The arguments of ``vllm serve``, without host and port."""
        model = self.recipe.model
        context = ["--max-model-len", str(model.max_context)] if self.trained else []
        thinking = [] if model.reasoning_parser is None else ["--reasoning-parser", model.reasoning_parser]
        calls = ["--enable-auto-tool-choice", "--tool-call-parser", model.tool_parser]
        return ["serve", str(self.folder), "--served-model-name", self.name, *context, *calls, *thinking]

    def command(self, host: str, port: int, has_gpu: bool) -> list[str]:
        """The command line of the server on this machine. Without a GPU, compiling the model would take minutes."""
        engine = self.recipe.generators
        eager = [] if has_gpu else ["--enforce-eager"]
        return [
            *(sys.executable, "-P", "-m", _MODULE, "--model", *self.arguments()[1:], "--host", host, "--port", str(port)),
            *("--dtype", engine.dtype, "--tensor-parallel-size", str(engine.tensor_parallel)),
            *eager,
        ]

    def variables(self, has_gpu: bool) -> Mapping[str, str]:
        """The environment variables of the server on this machine."""
        cache = {} if has_gpu else {"VLLM_CPU_KVCACHE_SPACE": str(max(1, self.recipe.generators.kv_cache_mb >> 10))}
        return {**os.environ, **cache}


@contextmanager
def served_model(word: str, version: int | None, view: LiveView) -> Iterator[ServedModel]:
    """Give the model that ``word`` means; a folder that is made for it, from a checkpoint, is removed afterwards.

    Args:
        word: a run's folder, a Hugging Face folder, a model of the hub, or ``tiny``.
        version: the policy version of a run; its newest if None.

    Raises:
        RecipeError: there is no such model or version.
    """
    model = find_model(str(Path(word).resolve()) if Path(word).exists() else word, version)
    recipe = _recipe_of(model, word)
    with TemporaryDirectory(prefix="asyncrl-model-") as made:
        if model.run is not None and model.weights is not Weights.FOLDER:
            folder, temporary = Path(made) / "model", True
            export_version(model, folder, view)
        else:
            folder, temporary = model_folder(model, recipe, view), False
        yield ServedModel(model.name.replace(" version ", "-v"), folder, recipe, model.run is not None, temporary)


def _recipe_of(model: EvaluatedModel, word: str) -> Recipe:
    if model.run is not None:
        return recipe_that_trained(model.run)
    named = str(model.path) if model.weights is Weights.FOLDER else word
    return compose_for(Machine.here(), "quickstart", [f"model.path={quoted(named)}"])[0]
