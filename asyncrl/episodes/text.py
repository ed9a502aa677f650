"""Text of token ids, by the tokenizer in a model's folder."""

from pathlib import Path

from asyncrl.episodes.writer import Decode


def decoder(model_path: Path) -> Decode:
    """Load the tokenizer in ``model_path``, and return what makes text of token ids with it, special tokens included.

    Takes seconds where the folder has no ``tokenizer.json``, which transformers must then make.
    """
    file = model_path / "tokenizer.json"
    if file.is_file():
        from tokenizers import Tokenizer  # only who writes episodes needs it

        tokenizer = Tokenizer.from_file(str(file))
    else:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(str(model_path)).backend_tokenizer

    def decode(token_ids: list[int]) -> str:
        text: str = tokenizer.decode(token_ids, skip_special_tokens=False)
        return text

    return decode
