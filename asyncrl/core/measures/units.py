"""Numbers as people read them: the same in the plan, the live view and the summary."""


def duration(seconds: float) -> str:
    """``0.4 s``, ``12 s``, ``3 min 05 s`` or ``2 h 07 min``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def memory(size: float) -> str:
    """Bytes as ``240 MiB`` or ``1.5 GiB``."""
    return f"{size / 2**20:,.0f} MiB" if size < 2**30 else f"{size / 2**30:,.1f} GiB"


def quantity(number: float) -> str:
    """``832``, ``412,400``, ``1.24 M`` or ``7.62 B``."""
    if number >= 1e9:
        return f"{number / 1e9:.2f} B"
    return f"{number / 1e6:.2f} M" if number >= 1e6 else f"{number:,.0f}"


def percent(share: float) -> str:
    """A share of 1 as ``38 %``."""
    return f"{share:.0%}".replace("%", " %")
