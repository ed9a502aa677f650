"""Imported once by the server that test ranks are forked from: everything that takes long to import."""

import gc
import importlib

import torch

from asyncrl.learners.megatron.cpu import compat, elementwise
from asyncrl.learners.megatron.cpu.attention import prepare

compat.install()

for module in (
    "learner_samples",
    "asyncrl.learners.learner",
    "asyncrl.learners.megatron.trainer",
    "rank_side",
    "asyncrl.replay.watching",
):
    importlib.import_module(module)

# Machine code, for what most tests train, and for latent attention.
prepare(4, 2, 16)
prepare(4, 4, 20)
for dtype in (torch.float32, torch.bfloat16):
    values, weight, angles = (torch.ones(*shape, dtype=dtype, requires_grad=True) for shape in ((1, 2, 32), (32,), (1, 1, 16)))
    normed = elementwise.rms_norm(values, weight, 1e-6)
    (elementwise.rotate(normed, angles, angles).sum() + elementwise.gated_silu(normed).sum()).backward()

# Ranks share what is imported here. Megatron collects garbage at each checkpoint, which would search, and so copy, all of it.
gc.collect()
gc.freeze()
