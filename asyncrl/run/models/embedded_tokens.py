"""Checks that a model has an embedding of each token of its tokenizer, and of each one at which its turns end."""

from pathlib import Path
from typing import TYPE_CHECKING

from asyncrl.core.errors import RecipeError
from asyncrl.core.files.weight_files import INDEX, SINGLE

if TYPE_CHECKING:
    from asyncrl.generators.chat_format import ChatFormat


def check_embedded(chat: "ChatFormat", vocabulary: int, folder: Path) -> None:
    """Check that a model has embeddings of all tokens: engines die of others.

    Args:
        vocabulary: how many embeddings the model in ``folder`` has.

    Raises:
        RecipeError: its tokenizer has tokens beyond them, or its configuration has turns end with one.
    """
    last, token = max((number, token) for token, number in chat.tokenizer.get_vocab().items())
    if last >= vocabulary:
        loaded = f"m = M.from_pretrained({str(folder)!r}, dtype='auto')"
        resized = f"m.resize_token_embeddings({last + 1}); m.save_pretrained({str(folder)!r})"
        imported = "from pathlib import Path; from transformers import AutoModelForCausalLM as M"
        # The index of several files outlives them where the model is saved as one.
        forgotten = f"Path({str(folder / SINGLE)!r}).exists() and Path({str(folder / INDEX)!r}).unlink(missing_ok=True)"
        command = f'python -c "{imported}; {loaded}; {resized}; {forgotten}"'
        raise RecipeError(
            "model.path",
            f"its tokenizer has tokens up to {last} ({token!r}), and the model has embeddings of {vocabulary}",
            f"use the tokenizer that belongs to the weights, or add embeddings, which are yet to be trained: {command}",
        )
    if (end := max(chat.ends_of_turn)) >= vocabulary:
        named = f"generation_config.json or config.json names {end} as eos_token_id"
        problem = f"{named}, and the model has embeddings of {vocabulary}"
        raise RecipeError("model.path", problem, "correct it there")
