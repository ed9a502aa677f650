"""The Megatron side of the learner. Call :func:`learners.megatron.cpu.compat.install` before importing any other module from
here."""
