"""Imported once by the server that test ranks are forked from: everything that takes long to import."""

import importlib

from learners.megatron import cpu_compat

cpu_compat.install()

for module in ("learner_samples", "learners.learner", "learners.megatron.trainer", "rank_side"):
    importlib.import_module(module)
