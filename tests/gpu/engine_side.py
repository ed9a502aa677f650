"""Two training steps on a CPU in a process of its own, with the plain layers, or with TransformerEngine's from an unpacked wheel.

Arguments: a folder for models, and the wheel, or nothing. One model has tied embeddings, another one has not.
"""

import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import msgspec
import torch

from asyncrl.bench.gpu import settings, subject

LENGTHS = [60, 47, 33, 90, 12, 64, 64, 5, 30, 31, 32, 33, 34, 35, 36, 37]
STEPS = 2


def use_engine(wheel: Path) -> None:
    """Have the learner's layers be TransformerEngine's, whose Python believes to see an H100."""
    import engine_stand_ins

    from learners.megatron import engine

    engine_stand_ins.install(wheel)
    engine.why_unusable = lambda: ""
    engine.engine_layers = lambda dtype, context_parallel: context_parallel == 1
    caller = sys._getframe
    torch.cuda.is_available = lambda: caller(1).f_globals.get("__name__", "").startswith("transformer_engine")
    torch.Tensor.is_cuda = property(lambda _: caller(1).f_globals.get("__name__", "").startswith("transformer_engine"))
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.cuda.get_device_properties = lambda *_: SimpleNamespace(major=9, minor=0, multi_processor_count=132)
    torch.cuda.is_current_stream_capturing = lambda: False


def main() -> None:
    folder, *wheel = sys.argv[1:]
    if wheel:
        use_engine(Path(*wheel))
        from learners.megatron.cpu import compat

        getattr(compat, "install", lambda: None)()
        import engine_stand_ins
        from transformer_engine.pytorch.attention import DotProductAttention

        DotProductAttention.forward = engine_stand_ins.attention
    print(json.dumps([trained(Path(folder) / str(tied), tied, bool(wheel)) for tied in (True, False)]), flush=True)
    os._exit(0)  # what imitates a GPU is not there to be closed


def trained(folder: Path, tied: bool, with_engine: bool) -> dict[str, object]:
    """Losses and gradient norms of the steps, and how often each of TransformerEngine's functions was called."""
    calls = sys.modules["engine_stand_ins"].CALLS if with_engine else {}
    calls.clear()
    size = msgspec.structs.replace(settings.TINY, tied=tied)
    folder.mkdir()
    subject.make_model(folder, size)
    batch, rows = subject.rows_of(LENGTHS, size.vocabulary)
    learner = subject.make_learner(folder, 512, dtype="float32")
    found = []
    for version in range(STEPS):
        values = subject.values_of(learner.step(subject.at_version(batch, version), rows))
        found.append([values["loss/policy"], values["learner/grad_norm"]])
    learner.close()
    return {"steps": found, "calls": dict(calls)}


if __name__ == "__main__":
    main()
