"""The Megatron side of the learner. Call ``compat.install`` before importing any other module from here but :mod:`.versions`."""
