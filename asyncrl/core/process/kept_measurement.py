"""Measurements of this kind of processor, which are made once and kept in the cache.

What always holds: all processes of a machine that ask for the same measurement get the same numbers, also if several of them
measure at once: the first to finish wins. So what they decide by it is the same too, in the next run as well.
"""

import contextlib
import hashlib
import logging
import os
import tempfile
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from asyncrl.core.files.cache_folder import cache_folder
from asyncrl.core.process.processor import processor_kind

logger = logging.getLogger(__name__)

Measured = TypeVar("Measured", bound=msgspec.Struct)


def kept_measurement(name: str, about: Sequence[object], kind: type[Measured], measure: Callable[[], Measured]) -> Measured:
    """Return what was measured on such a processor before, or measure and keep it.

    Args:
        name: names what is measured, and begins the name of the file.
        about: everything else that the measurement depends on, such as versions and sizes.
        kind: the struct that holds the numbers.
        measure: measures them. What it raises is passed on.
    """
    inputs = msgspec.json.encode([processor_kind(), *about], order="deterministic", enc_hook=str)
    path = cache_folder() / "speeds" / f"{name}-{hashlib.sha256(inputs).hexdigest()[:16]}.json"

    def kept() -> Measured | None:
        try:
            return msgspec.json.decode(path.read_bytes(), type=kind)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            logger.warning("%s cannot be read, so it is measured again: %s", path, error)
            with contextlib.suppress(OSError):
                path.unlink()
            return None

    before = kept()
    if before is not None:
        return before
    found = measure()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".measured-") as written:
            written.write(msgspec.json.encode(found))
            written.flush()
            os.link(written.name, path)
    except FileExistsError:
        return kept() or found
    except OSError as error:
        logger.warning("the measurement of %s cannot be kept, so other processes will repeat it: %s", name, error)
    return found
