"""What ``asyncrl bench gpu`` will be able to say on a machine, told before the first part begins."""

from collections.abc import Collection
from importlib.util import find_spec

import msgspec

from asyncrl.bench.gpu import engine
from asyncrl.bench.gpu.room import plain_rows, recomputed
from asyncrl.bench.gpu.settings import GpuBenchSettings


class Machine(msgspec.Struct, frozen=True):
    """What is measured.

    Attributes:
        device: name of the GPU; ``cpu`` if there is none.
        gpus: how many there are.
        memory: bytes of the first one's memory; None if there is none.
    """

    device: str = "cpu"
    gpus: int = 0
    memory: int | None = None


def machine() -> Machine:
    """Look at the machine. The process sees the GPU from then on."""
    import torch

    if not torch.cuda.is_available():
        return Machine()
    return Machine(torch.cuda.get_device_name(), torch.cuda.device_count(), torch.cuda.get_device_properties(0).total_memory)


def lacking(packages: Collection[str]) -> list[str]:
    """Those of the packages that are not installed."""
    return [name for name in packages if find_spec(name) is None]


def sayable(there: Machine, settings: GpuBenchSettings, parts: Collection[str]) -> dict[str, str]:
    """For each part, what it will be able to say, or why it cannot say it; and for all, if there is no GPU."""
    said = {
        "correctness": "whether one rank on the GPU computes what one on the CPU computes",
        "training": _training(there, settings),
        "logprob": "time and memory of log-probabilities, and how far they are from float64",
        "publication": f"seconds for {settings.publication.model.name} from the learner to another process, bits compared",
        "broadcast": _broadcast(there),
        "engine": _engine(),
    }
    of_parts = {name: said[name] for name in parts}
    return of_parts if there.gpus else {"all parts": "whether the program works: without a GPU no target is judged"} | of_parts


def _training(there: Machine, settings: GpuBenchSettings) -> str:
    beside: list[str] = []
    learner: list[str] = []
    none: list[str] = []
    for size in settings.training.models:
        fits = recomputed(size, settings.training, there.memory) is not None
        kind = (beside if plain_rows(size, settings.training, there.memory) else learner) if fits else none
        kind.append(size.name)
    told = (
        ("{} beside the plain loop", beside),
        ("{} alone, as the plain loop has no room", learner),
        ("nothing of {}: no room", none),
    )
    return f"tokens per second: {'; '.join(text.format(', '.join(names)) for text, names in told if names)}"


def _broadcast(there: Machine) -> str:
    missing = [f"{name}, which is not installed" for name in lacking(("vllm",))]
    missing += [] if there.gpus > 1 else [f"two GPUs, of which there are {there.gpus}"]
    return f"nothing: it needs {' and '.join(missing)}" if missing else "seconds from one GPU to another by NCCL"


def _engine() -> str:
    missing = lacking(engine.NEEDED)
    if missing:
        return f"nothing: {', '.join(missing)} not installed"
    return "an engine's tokens per second, its pause for new weights, log-probability gaps, and whether a quickstart ends well"
