"""Makes the folder of a model that is pushed: what ``asyncrl export`` writes, and the card.

What always holds: the folder appears whole or not at all, and no file of it says where on this machine the model lay.
"""

import tempfile
from pathlib import Path
from typing import Any

import msgspec

from asyncrl.core.errors import RecipeError
from asyncrl.core.files.file_errors import naming
from asyncrl.core.files.hub import is_hub_id
from asyncrl.core.files.model_copies import check_can_be_made
from asyncrl.run.evaluation.found_model import EvaluatedModel, find_model
from asyncrl.run.evaluation.version_export import export_version
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.models.model_sources import ADAPTER_CONFIG
from asyncrl.run.push.card import Card
from asyncrl.run.views.live_view import LiveView

_NAMES = ("_name_or_path", "name_or_path", "base_model_name_or_path")
"""Keys of the configurations of a model, a tokenizer and an adapter that say where it, or what it is added to, lay."""
_CONFIGS = ("config.json", "tokenizer_config.json", "generation_config.json", "processor_config.json", ADAPTER_CONFIG)


def trained_model(run: Path) -> EvaluatedModel:
    """Return the newest version of a run.

    Raises:
        RecipeError: it is no run, or no training step has changed its model yet.
    """
    model = find_model(str(RunFolder.find(run).path))
    if not model.is_trained:
        remedy = "let it train up to its first checkpoint (checkpoint.every), or name another run"
        raise RecipeError("", f"{model.name} is what the run began with: it has no trained model yet", remedy)
    return model


def write_model(model: EvaluatedModel, card: Card, folder: Path, view: LiveView) -> None:
    """Write what is pushed as the new folder ``folder``.

    Raises:
        RecipeError: there is something at ``folder`` already, or its parent does not exist.
        OSError, ComponentFailed, DeadlineExceeded: the model cannot be written; nothing is left at ``folder``.
    """
    check_can_be_made(folder)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as making:
        made = Path(making).resolve() / "model"
        export_version(model, made, view)
        for name in _CONFIGS:
            _forget_path(made / name)
        for name, content in card.files.items():
            with naming(made / name):
                (made / name).write_bytes(content)
        made.rename(folder)


def _forget_path(config: Path) -> None:
    """Take the path of a folder out of a configuration; the id of a model on the hub may stay."""
    if not config.is_file():
        return
    with naming(config):
        values: dict[str, Any] = msgspec.json.decode(config.read_bytes(), type=dict[str, Any])
        told = [name for name in _NAMES if name in values and not is_hub_id(str(values[name]))]
        if told:
            kept = {name: value for name, value in values.items() if name not in told}
            config.write_bytes(msgspec.json.format(msgspec.json.encode(kept)))
