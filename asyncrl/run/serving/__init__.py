"""Trained models where others use them: behind vLLM's server, and in a conversation."""
