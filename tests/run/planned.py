"""A machine and a model that plans are made for."""

from asyncrl.run.nodes.machine import Machine

ROOMY = Machine(memory=64 << 30, free=60 << 30, cores=8)

QWEN3_0_6B = {
    "hidden_size": 1024,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 3072,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
}
