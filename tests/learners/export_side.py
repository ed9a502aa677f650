"""What a process does that exports a checkpoint."""

from pathlib import Path

from asyncrl.core.recipe.schema import Recipe
from asyncrl.learners.rank import RankSpec


def export(spec: RankSpec, recipe: Recipe, model_path: Path, source: Path, folder: Path) -> int:
    from asyncrl.learners.megatron.cpu import compat

    compat.install()
    from asyncrl.learners.megatron.state.export import export_checkpoint

    return export_checkpoint(source, recipe, model_path, folder, spec.threads)
