from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification, Qwen2Config, Qwen2ForCausalLM, Qwen2ForSequenceClassification

from asyncrl.core.errors import ComponentFailed, RecipeError
from asyncrl.core.recipe.reward import ModelRewardConfig
from asyncrl.learners.reward_model import RewardModel

PADDING = 3


def config() -> Qwen2Config:
    return Qwen2Config(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        pad_token_id=PADDING,
        num_labels=1,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    model = Qwen2ForSequenceClassification(config())
    torch.nn.init.normal_(model.score.weight)
    path = tmp_path_factory.mktemp("reward")
    model.save_pretrained(path)
    return path


def rows(count: int) -> list[np.ndarray]:
    """Rows of many lengths; some hold the padding token inside."""
    rng = np.random.default_rng(0)
    drawn = [rng.integers(0, 64, rng.integers(1, 100)).astype(np.int32) for _ in range(count)]
    for row in drawn:
        row[-1] = max(row[-1], PADDING + 1)
    return drawn


@pytest.mark.parametrize("batch_tokens", [128, 700, 100_000])
def test_scores_are_those_of_each_row_alone(folder: Path, batch_tokens: int) -> None:
    episodes = rows(33)
    assert any(PADDING in row for row in episodes)
    alone = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float64).eval()
    with torch.no_grad():
        expected = [alone(torch.from_numpy(row.astype(np.int64))[None]).logits.item() for row in episodes]
    model = RewardModel(ModelRewardConfig(path=str(folder), dtype="float32", batch_tokens=batch_tokens), torch.device("cpu"))
    assert np.std(expected) > 0.1
    np.testing.assert_allclose(model.score(episodes), expected, atol=2e-4)


def test_a_token_without_an_embedding_is_named(folder: Path) -> None:
    model = RewardModel(ModelRewardConfig(path=str(folder)), torch.device("cpu"))
    known, unknown = np.array([1, 63], np.int32), np.array([5, 64], np.int32)
    assert len(model.score([known])) == 1
    with pytest.raises(ComponentFailed, match=r"token 64, which the policy sampled: .* has embeddings of 64 tokens"):
        model.score([known, unknown])


def test_no_forward_pass_has_more_tokens_than_it_may(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = []
    forward = Qwen2ForSequenceClassification.forward

    def measured(self: Qwen2ForSequenceClassification, input_ids: torch.Tensor, **more: torch.Tensor) -> object:
        sizes.append(input_ids.shape)
        return forward(self, input_ids=input_ids, **more)

    monkeypatch.setattr(Qwen2ForSequenceClassification, "forward", measured)
    model = RewardModel(ModelRewardConfig(path=str(folder), batch_tokens=400), torch.device("cpu"))
    episodes = rows(40)
    model.score(episodes)
    assert sum(count for count, _ in sizes) == len(episodes)
    assert all(count * length <= 400 for count, length in sizes)
    assert len(sizes) <= 2 * sum(map(len, episodes)) / 400, "rows of like length go together"


def test_a_folder_without_the_weights_of_the_score_is_refused(tmp_path: Path) -> None:
    Qwen2ForCausalLM(config()).save_pretrained(tmp_path)
    with pytest.raises(RecipeError, match=r"score\.weight"):
        RewardModel(ModelRewardConfig(path=str(tmp_path)), torch.device("cpu"))
