"""Training steps on a CPU with the plain layers, or with TransformerEngine's from an unpacked wheel, in a process of its own.

Arguments: a folder that both processes share, and the wheel, or nothing. Prints losses and gradient norms of each
case, and how often each of TransformerEngine's functions was called.
"""

import json
import os
import sys
import time
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import torch

from asyncrl.bench.gpu import settings, subject
from asyncrl.core.measures.metrics import combine
from asyncrl.core.recipe.algorithm import AlgorithmConfig
from asyncrl.core.recipe.correction import CorrectionConfig
from asyncrl.core.recipe.learner import LearnerConfig
from asyncrl.core.recipe.loss import PpoClipLossConfig
from asyncrl.core.recipe.schema import DeadlinesConfig
from asyncrl.learners.rank import FileMeeting, RankSpec

LENGTHS = [60, 47, 33, 90, 12, 64, 64, 5, 30, 31, 32, 33, 34, 35, 36, 37]
STEPS = 2
OTHER_S = 150.0
"""How long one process waits for the other's checkpoint."""


class Case(msgspec.Struct, frozen=True):
    """A model and how it is trained: keys of a recipe's ``learner`` section.

    Attributes:
        exchanged: the checkpoint is loaded by the process with the other layers, which trains another step from it.
    """

    learner: dict[str, Any] = {}
    tied: bool = True
    experts: int = 0
    prompt: int | None = None
    exchanged: bool = False


CASES = {
    "tied": Case(exchanged=True),
    "untied": Case(tied=False),
    "experts": Case(experts=4, exchanged=True),
    "lora": Case({"lora": {"rank": 4}}),
    "bfloat16": Case({"dtype": "bfloat16"}),
    "recompute-selective": Case({"recompute": "selective"}),
    "recompute-full": Case({"recompute": "full"}),
    "prefixes": Case(prompt=24),
    "tp2": Case({"tensor_parallel": 2}),
    "pp2": Case({"pipeline_parallel": 2}),
    "dp2": Case({"data_parallel": 2}),
    "cp4": Case({"context_parallel": 4}),
    "bfloat16-cp2": Case({"context_parallel": 2, "dtype": "bfloat16"}),
    "tp2-cp2": Case({"tensor_parallel": 2, "context_parallel": 2}, exchanged=True),
    "ep2": Case({"data_parallel": 2, "expert_parallel": 2}, experts=4),
    "tp2-pp2": Case({"tensor_parallel": 2, "pipeline_parallel": 2}, tied=False, exchanged=True),
}


def use_engine(wheel: Path) -> None:
    """Have the learner's layers be TransformerEngine's, whose Python believes to see an H100."""
    import engine_stand_ins

    from asyncrl.learners.megatron import engine

    engine_stand_ins.install(wheel)
    engine.why_unusable = lambda: ""
    engine.engine_layers = lambda dtype: True
    caller = sys._getframe
    torch.cuda.is_available = lambda: caller(1).f_globals.get("__name__", "").startswith("transformer_engine")
    torch.Tensor.is_cuda = property(lambda _: caller(1).f_globals.get("__name__", "").startswith("transformer_engine"))
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.cuda.get_device_properties = lambda *_: SimpleNamespace(major=9, minor=0, multi_processor_count=132)
    torch.cuda.is_current_stream_capturing = lambda: False
    torch._dynamo.config.disable = True  # it would compile for the H100


def import_everything(wheel: Path | None) -> None:
    if wheel is not None:
        use_engine(wheel)
    from asyncrl.learners.megatron.cpu import compat

    compat.install()
    if wheel is not None:
        import attention_stand_ins
        import engine_stand_ins
        from transformer_engine.pytorch.attention import DotProductAttention
        from transformer_engine.pytorch.attention.dot_product_attention import context_parallel

        from asyncrl.learners.megatron.cpu.attention import attention_on_cpu
        from asyncrl.learners.megatron.layers import engine_attention

        def continue_prefixes(query: Any, key: Any, value: Any, packed: Any, scale: float | None) -> Any:
            return attention_on_cpu(query, key, value, packed.segment_table, scale).flatten(1)

        float32_attention = engine_stand_ins.counted(attention_stand_ins.attention)
        by_kernels = DotProductAttention.forward

        def forward(self: Any, query: Any, *arguments: Any, **options: Any) -> Any:
            """In half precision, TransformerEngine chooses a kernel; it has none for float32."""
            attention = float32_attention if query.dtype is torch.float32 else by_kernels
            return attention(self, query, *arguments, **options)

        DotProductAttention.forward = forward
        transfers = context_parallel.flash_attn_p2p_communicate
        context_parallel.flash_attn_p2p_communicate = attention_stand_ins.transfers_waited_for_twice(transfers)
        engine_attention.continue_prefixes = engine_stand_ins.counted(continue_prefixes)
    import asyncrl.learners.learner  # noqa: F401


def main() -> None:
    folder, wheel = Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None
    kind = "engine" if wheel else "plain"
    for name, case in CASES.items():
        own = folder / f"{kind}-{name}"
        own.mkdir()
        subject.make_model(own, msgspec.structs.replace(settings.TINY, tied=case.tied), case.experts)
        FileMeeting.make(own / "meeting")
    import_everything(wheel)
    forking = get_context("fork")
    most = max(_learner_keys(case).layout.ranks for case in CASES.values())
    links = []
    for rank in range(most):
        here, there = forking.Pipe()
        forking.Process(target=train_all, args=(folder, kind, rank, there), daemon=True).start()
        there.close()
        links.append(here)
    found = [link.recv() for link in links]
    for link in links:
        link.send(None)
    print(json.dumps({name: _combined([each[name] for each in found if name in each]) for name in CASES}), flush=True)
    os._exit(0)  # what imitates a GPU is not there to be closed


def _combined(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """Of a case: of all ranks, loss and gradient norm of each step; of rank 0, how often each function was called."""
    steps = [
        combine(reading for report in reports for reading in report)
        for reports in zip(*(each["steps"] for each in ranks), strict=True)
    ]
    return {"steps": [[step["loss/policy"], step["learner/grad_norm"]] for step in steps], "calls": ranks[0]["calls"]}


def train_all(folder: Path, kind: str, rank: int, results: Any) -> None:
    """Train every case that has work for this rank, and send what came of it."""
    torch.set_num_threads(1)
    results.send(
        {name: trained(folder, name, kind, rank) for name, case in CASES.items() if rank < _learner_keys(case).layout.ranks}
    )
    results.recv()  # until all are done: who leaves first would end the others' collectives
    os._exit(0)


def trained(folder: Path, name: str, kind: str, rank: int) -> dict[str, Any]:
    """What one rank reads of the steps of one case, and how often each of TransformerEngine's functions was called in it."""
    from asyncrl.learners.learner import Learner

    case, other = CASES[name], {"plain": "engine", "engine": "plain"}[kind]
    calls = sys.modules["engine_stand_ins"].CALLS if kind == "engine" else {}
    calls.clear()
    batch, rows = subject.rows_of([(case.prompt or 0) + length for length in LENGTHS], settings.TINY.vocabulary, case.prompt)
    keys, own = _learner_keys(case), folder / f"{kind}-{name}"
    learner = Learner(
        AlgorithmConfig(loss=PpoClipLossConfig(), correction=CorrectionConfig(anchor="proximal_recomputed", weight="token")),
        keys,
        DeadlinesConfig(step=OTHER_S),
        temperature=1.0,
        steps=1000,
        seed=0,
        model_path=own,
        rank=RankSpec(rank=rank, layout=keys.layout, meeting=FileMeeting(str(own / "meeting"))),
    )

    def step(version: int) -> list[Any]:
        return list(learner.step(subject.at_version(batch, version), rows).readings)

    found = [step(version) for version in range(STEPS)]
    if case.exchanged:
        saved = f"version-{STEPS:06d}"
        learner.start_checkpoint(own / saved)
        learner.finish_checkpoint()
        (own / "saved").touch()
        found.append(step(STEPS))
        _wait_for(folder / f"{other}-{name}" / "saved")
        learner.load_checkpoint(folder / f"{other}-{name}" / saved)
        found.append(step(STEPS))
    learner.close()
    return {"steps": found, "calls": dict(calls)}


def _learner_keys(case: Case) -> LearnerConfig:
    return msgspec.convert({"lr": 1e-3, "micro_batch_tokens": 512, **case.learner}, LearnerConfig)


def _wait_for(file: Path) -> None:
    ends = time.monotonic() + OTHER_S
    while not file.exists():
        assert time.monotonic() < ends, f"the other process wrote no {file} within {OTHER_S:.0f} s"
        time.sleep(0.05)


if __name__ == "__main__":
    main()
