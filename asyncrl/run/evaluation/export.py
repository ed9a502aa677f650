"""Makes a Hugging Face folder of a run's checkpoint in a process of its own: ``python -m asyncrl.run.evaluation.export REQUEST``.

It works on the CPU, so that the GPUs are free for engines, and prints nothing.
"""

import sys
from pathlib import Path

import msgspec

from asyncrl.core.process.control_groups import usable_cores
from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.host.helper_process import explaining, run_helper

_NO_GPU = {"CUDA_VISIBLE_DEVICES": ""}


class Request(msgspec.Struct, frozen=True):
    """Which checkpoint to export, of which run, to where; see ``export.export_checkpoint``."""

    checkpoint: str
    recipe: Recipe
    model_path: str
    folder: str


async def export_checkpoint(checkpoint: Path, recipe: Recipe, model_path: Path, folder: Path) -> None:
    """Write the policy of ``checkpoint``, which a run of ``recipe`` saved, as the new Hugging Face folder ``folder``.

    Args:
        model_path: the Hugging Face folder that the run began with.

    Raises:
        ComponentFailed: the checkpoint cannot be exported; the text says why.
        DeadlineExceeded: it took longer than ``deadlines.start``.
    """
    request = Request(str(checkpoint), recipe, str(model_path), str(folder))
    task, seconds = f"exporting {checkpoint}", recipe.deadlines.start
    await run_helper("asyncrl.run.evaluation.export", request, lambda line: None, task=task, seconds=seconds, **_NO_GPU)


def main(request: Request) -> None:
    """Export the checkpoint."""
    from asyncrl.learners.megatron.cpu import compat

    compat.install()  # before anything of Megatron is imported
    from asyncrl.learners.megatron.state.export import export_checkpoint

    checkpoint, model_path, folder = Path(request.checkpoint), Path(request.model_path), Path(request.folder)
    export_checkpoint(checkpoint, request.recipe, model_path, folder, threads=usable_cores())


if __name__ == "__main__":
    with explaining():
        main(msgspec.json.decode(sys.argv[1], type=Request))
