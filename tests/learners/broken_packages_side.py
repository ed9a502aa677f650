"""What a process does that imports the learner beside broken packages; forked from a server that has imported no Megatron."""

import os
import sys
from pathlib import Path

import torch


def import_learner(packages: Path, with_gpu: bool) -> None:
    """Import Megatron and the trainer where ``packages`` are found first, and write why there is no TransformerEngine.

    It goes to the file ``stdout`` there, and what is logged to ``stderr``.
    """
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(packages / name, os.O_CREAT | os.O_WRONLY), descriptor)
    sys.path.insert(0, str(packages))
    if with_gpu:
        torch.cuda.is_available = lambda: True
    from asyncrl.learners.megatron.cpu import compat

    compat.install()
    compat.install()
    from megatron.core import fp8_utils, optimizer
    from megatron.core.extensions import transformer_engine
    from megatron.core.models.common.embeddings import rope_utils  # noqa: F401

    import asyncrl.learners.megatron.trainer  # noqa: F401
    from asyncrl.learners.megatron.engine import engine_layers, why_unusable

    assert not fp8_utils.HAVE_TE
    assert not transformer_engine.HAVE_TE
    assert optimizer.Adam is torch.optim.AdamW, optimizer.Adam
    assert not engine_layers(torch.bfloat16)
    os.write(1, why_unusable().encode())
