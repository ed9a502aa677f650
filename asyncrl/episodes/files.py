"""Names of the files of kept episodes in the ``trajectories`` folder of a run.

What always holds: the files whose names end with ``.parquet`` are whole; a file that is being written has another name. A
training step or an evaluation that is done again has no file of its first time.
"""

import os
import re
from pathlib import Path

SUFFIX = ".parquet"
_TRAINED = re.compile(r"train-(\d+)-\d+\.parquet")


def training_file(folder: Path, step: int, slice_number: int) -> Path:
    """The file of the rows that data-parallel slice ``slice_number`` trained in ``step``."""
    return folder / f"train-{step:06d}-{slice_number}{SUFFIX}"


def evaluation_file(folder: Path, version: int, player: str) -> Path:
    """The file of the episodes that ``player`` played in the evaluation of ``version``."""
    return folder / f"evaluation-{version:06d}-{player}{SUFFIX}"


def unfinished_file(path: Path) -> Path:
    """The file that becomes ``path`` once it is whole. Each process has one of its own."""
    return path.with_name(f".{path.name}.{os.getpid()}")


def evaluation_files(folder: Path, version: int) -> list[Path]:
    """The files of the evaluation of ``version`` that are there."""
    return sorted(folder.glob(f"evaluation-{version:06d}-*{SUFFIX}"))


def forget_steps_after(folder: Path, step: int) -> None:
    """Remove the files of the training steps after ``step``, which are about to be done again, perhaps in another layout, and
    what a process that was killed left unfinished."""
    for unfinished in folder.glob(f".*{SUFFIX}.*"):
        unfinished.unlink(missing_ok=True)
    for file in folder.glob(f"train-*{SUFFIX}"):
        if _TRAINED.fullmatch(file.name) and int(file.name.split("-")[1]) > step:
            file.unlink(missing_ok=True)


def forget_evaluation(folder: Path, version: int) -> None:
    """Remove the files of the evaluation of ``version``, which is about to be done again, perhaps by other generators."""
    for file in evaluation_files(folder, version):
        file.unlink(missing_ok=True)
