"""The Megatron side of the learner. :func:`.cpu_compat.install` comes before the import of any other module here."""
