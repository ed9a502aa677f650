"""The tiny model, made on this machine so that a first run needs no download: tokenizer, small Qwen3, supervised
warm-up, cache."""

from asyncrl.learners.tiny.cache import TinyProgress, ensure_tiny_model

__all__ = ["TinyProgress", "ensure_tiny_model"]
