"""Imported once by the server that test ranks are forked from: everything that takes long to import."""

import gc
import importlib

from learners.megatron.cpu import compat, cpu_attention
from learners.megatron.cpu.elementwise_code import elementwise_code

compat.install()

for module in ("learner_samples", "learners.learner", "learners.megatron.trainer", "rank_side"):
    importlib.import_module(module)

# Machine code, for what most tests train.
cpu_attention.prepare(4, 2, 16)
for bfloat16 in (False, True):
    elementwise_code(bfloat16=bfloat16)

# Ranks share what is imported here. Megatron collects garbage at each checkpoint, which would search, and so copy, all of it.
gc.collect()
gc.freeze()
