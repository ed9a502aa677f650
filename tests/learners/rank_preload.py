"""Imported once by the server that test ranks are forked from: everything that takes long to import."""

import gc
import importlib

from learners.megatron import cpu_compat

cpu_compat.install()

for module in ("learner_samples", "learners.learner", "learners.megatron.trainer", "rank_side"):
    importlib.import_module(module)

# Ranks share what is imported here. Megatron collects garbage at each checkpoint, which would search, and so copy, all of it.
gc.collect()
gc.freeze()
