"""On a CPU, queries whose heads have a dimension of their own are rotated as Hugging Face's DeepSeek rotates them."""

import pytest
import torch
from transformers import DeepseekV3Config
from transformers.models.deepseek_v3 import modeling_deepseek_v3 as theirs

pytest.importorskip("vllm")

from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.rotary_embedding import get_rope

from asyncrl.generators.vllm.cpu.rotation import rotate_heads_apart

TOKENS, HEADS, PLAIN, ROTATED = 7, 4, 32, 64


@pytest.mark.parametrize("heads_apart", [True, False])
def test_queries_and_the_key_of_latent_attention_are_those_of_hugging_face(heads_apart):
    torch.manual_seed(0)
    query, key = torch.randn(TOKENS, HEADS, PLAIN + ROTATED), torch.randn(TOKENS, ROTATED)
    positions = torch.arange(3, 3 + TOKENS)
    config = DeepseekV3Config(qk_rope_head_dim=ROTATED, max_position_embeddings=32)
    cosines = theirs.DeepseekV3RotaryEmbedding(config)(query, positions[None])
    of_heads = query[None, ..., PLAIN:].transpose(1, 2)
    expected, expected_key = theirs.apply_rotary_pos_emb_interleave(of_heads, key[None, None], *cosines)

    rotate_heads_apart()
    with set_current_vllm_config(VllmConfig()):
        rope = get_rope(ROTATED, max_position=32, is_neox_style=False, rope_parameters=config.rope_parameters)
        rotated = query[..., PLAIN:], key[:, None]  # as vLLM's layer has them: a part of each head
        if not heads_apart:
            rotated = rotated[0].flatten(1), key
        found, found_key = (each.reshape(TOKENS, -1, ROTATED) for each in rope.forward_cpu(positions, *rotated))

    products = found @ found_key[:, 0].T
    torch.testing.assert_close(products, (expected[0] @ expected_key[0].transpose(-1, -2)).transpose(0, 1))
