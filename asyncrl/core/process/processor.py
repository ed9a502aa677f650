"""What the system says of the processor."""

import zlib
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_KIND = (
    "vendor_id", "cpu family", "model", "model name", "stepping", "flags",
    "CPU implementer", "CPU architecture", "CPU variant", "CPU part", "Features",
)  # fmt: skip
"""What tells one kind of processor from another, on x86 and on ARM; speeds and numbers of cores are left out."""


def processor_kind() -> str:
    """Text that is the same for processors of one kind; empty where the system says nothing."""
    fields = _first_processor()
    return "; ".join(f"{name}: {fields[name]}" for name in _KIND if name in fields)


def processor_name() -> str:
    """A short name that is the same for processors of one kind, and another for others."""
    kind = processor_kind()
    name = _first_processor().get("model name", "processor")
    return f"{name} ({zlib.crc32(kind.encode()):08x})"


def instructions() -> set[str]:
    """Names of the processor's instruction sets; empty where the system does not say."""
    fields = _first_processor()
    return set((fields.get("flags") or fields.get("Features") or "").split())


def _first_processor() -> dict[str, str]:
    try:
        first, _, _ = _CPUINFO.read_text(encoding="utf-8", errors="replace").partition("\n\n")
    except OSError:
        return {}
    lines = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}
