"""A reward model, which scores rows of token ids. What always holds: batching changes a score only by rounding."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification

from asyncrl.core.errors import ComponentFailed, RecipeError
from asyncrl.core.recipe.reward import ModelRewardConfig

_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class RewardModel:
    """The model of a recipe's reward, on one device.

    Raises:
        RecipeError: if its folder lacks some of the model's weights, for example those of the score.
    """

    def __init__(self, reward: ModelRewardConfig, device: torch.device) -> None:
        self._path, self._batch_tokens, self._device = reward.path, reward.batch_tokens, device
        model, loading = AutoModelForSequenceClassification.from_pretrained(
            Path(reward.path),
            dtype=_DTYPES[reward.dtype],
            use_safetensors=True,  # never load pickled weights, which can run code
            output_loading_info=True,
        )
        if missing := sorted(loading["missing_keys"]):
            raise RecipeError(
                "reward.path", f"{reward.path} has no weights named {missing}", "name the folder of a trained reward model"
            )
        self._model = model.to(device).eval()
        self._padding: int = model.config.get_text_config().pad_token_id
        self._known: int = model.get_input_embeddings().num_embeddings

    @torch.inference_mode()
    def score(self, rows: Sequence[np.ndarray]) -> list[float]:
        """Return the model's score of each row of token ids (int32 [T], not empty).

        Raises:
            ComponentFailed: a row has a token that the model has no embedding of. A policy can sample ids that no tokenizer
                knows, since the sizes of vocabularies are often rounded up.
        """
        if (largest := max((int(row.max()) for row in rows), default=0)) >= self._known:
            raise ComponentFailed(
                f"the reward model cannot score token {largest}, which the policy sampled: {self._path} has embeddings of "
                f"{self._known} tokens; name one with the policy's vocab_size in its config.json (reward.path)"
            )
        scores = [0.0] * len(rows)
        for chosen in _batches([len(row) for row in rows], self._batch_tokens):
            lengths = torch.tensor([len(rows[index]) for index in chosen])
            token_ids = torch.full((len(chosen), int(lengths.max())), self._padding)
            for place, index in enumerate(chosen):
                token_ids[place, : lengths[place]] = torch.from_numpy(rows[index].astype(np.int64))
            mask = torch.arange(token_ids.shape[1]) < lengths[:, None]
            # Padding is on the right, where no token of a row attends. The model skips the padding token to find a
            # row's end.
            logits = self._model(input_ids=token_ids.to(self._device), attention_mask=mask.long().to(self._device)).logits
            for index, score in zip(chosen, logits[:, 0].tolist(), strict=True):
                scores[index] = score
        return scores


def _batches(lengths: Sequence[int], tokens: int) -> Iterator[list[int]]:
    """Yield batches of row indexes, with rows of similar length together. Padded, each has at most ``tokens`` tokens,
    or is a single row."""
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lengths.__getitem__, reverse=True):
        # The first row is the longest, and all others are padded to its length.
        if batch and lengths[batch[0]] * (len(batch) + 1) > tokens:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
