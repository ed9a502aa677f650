"""Checks a checkpoint whole, before any process that could load it starts: that it is what was written, and names nothing else.

Nothing here needs torch. Ranks check again what they load.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from asyncrl.core.process.control_groups import usable_cores
from asyncrl.learners.checkpointing.checkpoint_manifest import Manifest
from asyncrl.learners.checkpointing.checkpoint_names import check_names


def check_checkpoint(folder: Path) -> None:
    """Read every file of the checkpoint in ``folder``, and check it.

    Raises:
        CheckpointDamaged: a file is missing or is not what was written, or its version is not that of the folder's name.
        UnknownClass: a file names a class or function that asyncrl never writes into a checkpoint.
    """
    manifest = Manifest.read(folder)
    manifest.require_name(folder)
    with ThreadPoolExecutor(usable_cores(), "checking a checkpoint") as threads:  # checksums leave Python's lock
        for checked in [threads.submit(manifest.check, folder, [file]) for file in manifest.files]:
            checked.result()
    check_names(folder, {file.name for file in manifest.files})
