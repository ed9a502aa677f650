"""The files of a recipe's model that need no weights: tokenizer, template and configuration."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.models.hub import tokenizer_folder
from asyncrl.run.models.model_shape import TINY
from asyncrl.run.tiny.lessons import players_of


@contextmanager
def folder_without_weights(recipe: Recipe) -> Iterator[str]:
    """Yield a folder with a model's tokenizer and configuration; weights may be there, and are not needed.

    Raises:
        RecipeError: there is no such model, or the hub cannot be asked.
    """
    if recipe.model.path != TINY:
        yield str(tokenizer_folder(recipe.model.path, "model.path"))
        return
    from asyncrl.learners.tiny.settings import Size
    from asyncrl.learners.tiny.tokenizer_alone import tiny_tokenizer
    from asyncrl.learners.tiny.warmup import config_of

    environments = {name: player.environment for name, player in players_of(recipe).items()}
    tokenizer = tiny_tokenizer(environments, recipe.seed)
    with tempfile.TemporaryDirectory(prefix="asyncrl-") as folder:
        tokenizer.save_pretrained(folder)
        config = config_of(tokenizer, Size(), [int(tokenizer.eos_token_id)])
        config.architectures = ["Qwen3ForCausalLM"]
        config.save_pretrained(folder)
        yield str(Path(folder))
