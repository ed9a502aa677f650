"""The adapter to vLLM: one engine, its arguments, its turns, and what is changed in its process."""
