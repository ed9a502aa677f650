"""The Megatron side of the learner. Call :func:`.cpu_compat.install` before importing any other module from here."""
