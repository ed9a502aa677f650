"""What the values of a row may be, on their way through tickets and the journal, and what is made of others."""

from typing import Any

NESTING = 100
"""Most levels of lists and dictionaries in a task. Python's limit is far higher, but would only stop the run later."""
TOO_DEEP = f"nested more than {NESTING} levels deep"
_LEAST, _MOST = -(2**63), 2**64 - 1


def fitting(value: Any) -> Any:
    """Return a value of JSON with texts of digits for integers of more than 64 bits, which MessagePack does not have."""
    if isinstance(value, int) and not _LEAST <= value <= _MOST:
        return str(value)
    if isinstance(value, dict):
        return {key: fitting(each) for key, each in value.items()}
    return [fitting(each) for each in value] if isinstance(value, list) else value


def is_too_deep(value: Any, levels: int = NESTING) -> bool:
    """Whether lists and dictionaries are nested more than ``levels`` deep."""
    if not isinstance(value, dict | list | tuple):
        return False
    inner = value.values() if isinstance(value, dict) else value
    return not levels or any(is_too_deep(each, levels - 1) for each in inner)
