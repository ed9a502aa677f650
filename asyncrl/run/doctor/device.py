"""Looks at the GPUs, and at what the installed packages can do with them.

torch and TransformerEngine are asked in a process of their own with a deadline: they may hang or crash on a broken driver.
"""

from collections.abc import Iterator
from typing import Any

import msgspec
from packaging.requirements import Requirement
from packaging.version import Version

from asyncrl.core.errors import ComponentFailed
from asyncrl.core.measures.units import memory
from asyncrl.core.process.asked_python import ask_python
from asyncrl.run.doctor import building
from asyncrl.run.doctor.finding import Finding, fine, note, problem
from asyncrl.run.host import gpus

PROBE_S = 120.0
LEAST_DRIVER = {12: 525, 13: 580}
"""The oldest major version of NVIDIA's driver that runs programs of a major version of CUDA."""
UNNEEDED = ("torchvision", "torchaudio")
"""Packages that vLLM and transformers import wherever they are installed, and that models of texts do without."""
PROBE = """
import json, sys, asyncrl  # which hides some of them
found = {"errors": {}}
import torch
found["torch"], found["cuda"] = torch.__version__, torch.version.cuda
try:
    found["available"] = torch.cuda.is_available()
    if found["available"]:
        found["devices"] = [torch.cuda.get_device_name(n) for n in range(torch.cuda.device_count())]
        found["capability"] = list(torch.cuda.get_device_capability())
        torch.ones(1, device="cuda").sum().item()
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        found["attention"] = [
            name for name, on in (("flash", torch.backends.cuda.is_flash_attention_available()),
                                  ("memory-efficient", torch.backends.cuda.mem_efficient_sdp_enabled())) if on]
except Exception as error:
    found["errors"]["cuda"] = f"{type(error).__name__}: {error}"
for name in ("transformer_engine.pytorch", "flash_attn", "triton", *sys.argv[1:]):
    try:
        found[name] = str(getattr(__import__(name), "__version__", "there"))
    except ModuleNotFoundError as error:
        if error.name != name.partition(".")[0]:
            found["errors"][name] = str(error)
    except Exception as error:
        found["errors"][name] = f"{type(error).__name__}: {error}"
sys.stdout.write("\\n" + json.dumps(found))
"""


class Probed(msgspec.Struct, frozen=True, kw_only=True):
    """What torch and its friends say of the GPUs.

    Attributes:
        torch, cuda: versions; ``cuda`` is None in a CPU build.
        available: whether torch can use a GPU.
        devices, capability, nccl, attention: names of the GPUs, compute capability of the first, NCCL's version, and torch's own
            back-ends of attention there.
        packages: versions of optional packages that can be imported.
        errors: what failed, by name.
    """

    torch: str
    cuda: str | None
    available: bool = False
    devices: tuple[str, ...] = ()
    capability: tuple[int, ...] = ()
    nccl: str = ""
    attention: tuple[str, ...] = ()
    packages: dict[str, str] = {}
    errors: dict[str, str] = {}


def check_devices() -> Iterator[Finding]:
    """Ask the driver and torch for GPUs, and compare their answers."""
    devices, there = gpus.count_visible(), gpus.describe_visible()
    for gpu in there:
        yield fine("GPU", f"{gpu.index}: {gpu.name}, {memory(gpu.memory)}, driver {gpu.driver}")
    try:
        told = ask_python(dict[str, Any], ("-c", PROBE, *UNNEEDED), PROBE_S)
    except TimeoutError:
        yield problem(
            "torch", f"did not answer within {PROBE_S:g} s", "see whether `nvidia-smi` answers; restart the machine's driver"
        )
        return
    except ComponentFailed as error:
        yield problem("torch", f"cannot be used: {error}", "install torch again: requirements/cpu.txt, docs/how-to/gpu.md")
        return
    unused = gpus.why_unused()
    yield from judge(devices, probed(told), unused, next((gpu.driver for gpu in there), ""))
    if devices and not unused:
        yield from building.check_compiler()


def probed(told: dict[str, Any]) -> Probed:
    """Read what the probe wrote."""
    names = ("transformer_engine.pytorch", "flash_attn", "triton")
    return msgspec.convert({**told, "packages": {name: told[name] for name in names if name in told}}, Probed)


def judge(devices: int, found: Probed, unused: str, driver: str = "") -> Iterator[Finding]:
    """Say what follows from what the driver and torch answered.

    Args:
        devices: how many GPUs the system shows to this process.
        unused: which installed package cannot use them; empty if all can.
        driver: its version; empty if it is not known.
    """
    for name in UNNEEDED:
        if why := found.errors.get(name):
            yield problem(
                name,
                f"cannot be imported beside torch {found.torch}, so that vLLM cannot either: {why}",
                f"pip uninstall {name}, which texts do without, or install the build of it that belongs to torch {found.torch}",
            )
    if not devices:
        yield fine("GPU", f"none; torch {found.torch} computes on the CPU")
        return
    if unused:
        yield problem(
            "GPU", f"{devices} here, but {unused}", "install asyncrl[gpu] in a virtual environment of its own: docs/how-to/gpu.md"
        )
        return
    if not found.available:
        why = found.errors.get("cuda", f"torch {found.torch} for CUDA {found.cuda} finds none")
        yield problem("torch", f"{devices} GPUs here, and {why}", _remedy_of_driver(driver, found.cuda))
        return
    if "cuda" in found.errors:
        yield problem("torch", f"a GPU cannot compute: {found.errors['cuda']}", "see `nvidia-smi` and the system's log (Xid)")
        return
    yield fine("torch", f"{found.torch}, CUDA {found.cuda}, NCCL {found.nccl}, {len(found.devices)} GPUs")
    if found.capability < (8, 0):
        yield problem(
            "GPU", f"compute capability {'.'.join(map(str, found.capability))} has no bfloat16", "use an A100 or newer (8.0)"
        )
    elif found.capability < (8, 9):
        yield note("GPU", f"compute capability {'.'.join(map(str, found.capability))} has no fp8", "leave learner.fp8 at none")
    if "flash" in found.attention:
        yield fine("attention", f"torch's back-ends: {', '.join(found.attention)}")
    else:
        yield note("attention", "torch has no flash attention here", "without TransformerEngine, long rows take much memory")
    engine = "transformer_engine.pytorch"
    if engine in found.packages:
        version, wanted = found.packages[engine], Requirement(building.ENGINE).specifier
        if wanted.contains(Version(version).base_version, prereleases=True):
            yield fine("TransformerEngine", version)
        else:
            yield problem("TransformerEngine", f"{version}, and megatron-core takes {wanted}", building.BUILD)
    elif engine in found.errors:
        yield problem(
            "TransformerEngine",
            f"is installed, but cannot be imported, so that it is not used: {found.errors[engine]}",
            f"build its part for torch against this torch: {building.REBUILD}{_before_it_is_built()}",
        )
    else:
        yield note(
            "TransformerEngine",
            "not installed: layers are Megatron's plain ones, and there is no fp8",
            f"{building.BUILD}{_before_it_is_built()}",
        )


def _remedy_of_driver(driver: str, cuda: str | None) -> str:
    """What to do where torch finds no GPU. ``driver`` is a version such as ``570.86.15``, ``cuda`` one such as ``13.0``."""
    least = LEAST_DRIVER.get(int(cuda.partition(".")[0])) if cuda else None
    if least is None:
        return "compare the driver's CUDA version in `nvidia-smi` with torch's"
    major = driver.partition(".")[0]
    if major.isdigit() and int(major) < least:
        return f"update NVIDIA's driver, {driver}: CUDA {cuda} needs {least} or newer"
    return f"see whether NVIDIA's driver is {least} or newer, as CUDA {cuda} needs, and what `nvidia-smi` says"


def _before_it_is_built() -> str:
    lacking = building.lacking_to_build_engine()
    return f"; before that, install {', '.join(lacking)}: docs/how-to/gpu.md" if lacking else ""
