"""A teacher of on-policy distillation: engines of its own, or a server that has it."""
