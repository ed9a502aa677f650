"""Trackers beside MLflow: TensorBoard and Weights & Biases, each an optional package, and Ray's exporter.

All their calls are made in the thread of :class:`asyncrl.run.tracking.tracker.Tracker`, so training never waits for them. Their
files lie in the run's folder.
"""

import logging
import os
import re
import socket
from collections.abc import Callable, Mapping
from importlib import import_module
from netrc import NetrcParseError, netrc
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.schema import Recipe, TrackingConfig
from asyncrl.core.text import without_passwords
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.measures.declared_metrics import metric_called
from asyncrl.run.measures.summary import Status

logger = logging.getLogger(__name__)

REACHED_S = 5.0
"""How long the server of Weights & Biases may take to accept a connection; after that the run is kept in files."""
TRACKING_PROCESS = "wandb-core"
"""Name of the process of Weights & Biases, which takes the last records when all other processes of the run have ended."""
_STEP = "training step"
_IMPORTED = {"opentelemetry": "opentelemetry.exporter.otlp.proto.http.trace_exporter"}
"""What is imported for a tracker whose package is not called like it."""


class FurtherTracker(Protocol):
    """What a tracker beside MLflow can be asked for."""

    def log(self, step: int, time_s: float, values: Mapping[str, float]) -> None:
        """Record metrics of a training step, measured at ``time_s`` (seconds since the epoch)."""

    def flush(self) -> None:
        """Hand over what was recorded so far, so that it outlives this process."""

    def end(self, status: Status) -> None:
        """End the record of the run."""


def check_further_trackers(config: TrackingConfig) -> None:
    """Check that the packages of all trackers that the recipe asks for are there.

    Raises:
        RecipeError: one cannot be imported.
    """
    for name in config.also:
        try:
            if (
                import_module(_IMPORTED.get(name, name)).__file__ is None
            ):  # only a folder of that name, such as W&B's own beside a script
                raise ImportError(f"No module named {name!r}")
        except Exception as error:  # whatever a broken installation raises
            problem = f"{name} cannot be imported ({type(error).__name__}: {error})"
            raise RecipeError(
                "tracking.also", problem, f'install it with `pip install "asyncrl[{name}]"`, or take it out'
            ) from error


def make_further_tracker(name: str, recipe: Recipe, folder: RunFolder, run_id: str) -> FurtherTracker:
    """Make the tracker that ``tracking.also`` calls ``name``. Raises whatever its package raises.

    Args:
        run_id: the id of the run in MLflow, which a resumed run keeps.
    """
    making: dict[str, Callable[[], FurtherTracker]] = {
        "ray": lambda: RayExporter(folder),
        "tensorboard": lambda: TensorBoard(folder),
        "wandb": lambda: WeightsAndBiases(recipe, folder, run_id),
    }
    return making[name]()


class RayExporter:
    """Ray's own exporter, from which Prometheus reads the metrics of a cluster: the newest value of each metric, by run.

    Its agent is in ``ray[default]``; in a cluster without it, or one that the run has started for itself, nobody reads them.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._run, self._gauges = folder.path.name, dict[str, Any]()

    def log(self, step: int, time_s: float, values: Mapping[str, float]) -> None:
        """Set the values, and the training step that they are of."""
        import ray
        from ray.util.metrics import Gauge

        if not ray.is_initialized():
            return  # what is recorded before the cluster is joined, or after it was left
        for name, value in {_STEP: step, **values}.items():
            exported = exported_name(name)
            if exported not in self._gauges:
                known = metric_called(name)
                meaning = name if known is None else f"{known.meaning} ({known.unit})"
                self._gauges[exported] = Gauge(exported, meaning, tag_keys=("run",))
            self._gauges[exported].set(value, tags={"run": self._run})

    def flush(self) -> None:
        """Do nothing: Ray takes the values when it is asked for them."""

    def end(self, status: Status) -> None:
        """Do nothing: the values go with this process."""


def exported_name(metric: str) -> str:
    """The name of a metric for Prometheus, before which Ray writes ``ray_``."""
    return f"asyncrl_{re.sub('[^A-Za-z0-9_]', '_', metric)}"


class TensorBoard:
    """Writes event files into ``tensorboard/`` of the run's folder; ``tensorboard --logdir RUN_DIR`` compares all runs there."""

    def __init__(self, folder: RunFolder) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer: Any = SummaryWriter(str(folder.path / "tensorboard"))

    def log(self, step: int, time_s: float, values: Mapping[str, float]) -> None:
        """Write one event for each value."""
        for name, value in values.items():
            self._writer.add_scalar(name, value, step, walltime=time_s)

    def flush(self) -> None:
        """Write the events to disk."""
        self._writer.flush()

    def end(self, status: Status) -> None:
        """Close the file."""
        self._writer.close()


class WeightsAndBiases:
    """A run of Weights & Biases, in a project named like the experiment.

    Its server is used if it can be reached and there is a key for it; else the run is kept in ``wandb/`` of the run's folder, for
    ``wandb sync``. ``WANDB_MODE``, ``WANDB_ENTITY`` and its other variables hold as usual.
    """

    def __init__(self, recipe: Recipe, folder: RunFolder, run_id: str) -> None:
        import wandb

        module: Any = wandb
        shown = msgspec.structs.replace(recipe.tracking, uri=without_passwords(recipe.tracking.uri))
        mode = os.environ.get("WANDB_MODE") or _mode(str(module.Settings().base_url))
        self._run: Any = module.init(
            project=recipe.tracking.experiment,
            name=folder.path.name,
            id=run_id,
            resume="allow",
            dir=str(folder.path),
            mode=mode,
            config=msgspec.to_builtins(msgspec.structs.replace(recipe, tracking=shown)),
            settings=module.Settings(silent=True, console="off"),
        )
        # Evaluations come after later training steps, so steps are not in order, which W&B's own step would have to be.
        self._run.define_metric(_STEP)
        self._run.define_metric("*", step_metric=_STEP)

    def log(self, step: int, time_s: float, values: Mapping[str, float]) -> None:
        """Hand the values over to the process of W&B."""
        self._run.log({_STEP: step, **values})

    def flush(self) -> None:
        """Do nothing: W&B's own process keeps what it has been given."""

    def end(self, status: Status) -> None:
        """Wait until everything is written or sent, and end the run."""
        self._run.finish(exit_code=0 if status is Status.COMPLETED else 1)


def _mode(server: str) -> str:
    """Return ``online`` if there is a key for the server and it can be reached, else ``offline``."""
    address = urlsplit(server)
    host = address.hostname or ""
    try:
        if not _has_key(host):
            raise OSError(f"there is no key for {host}; see `wandb login`")
        socket.create_connection((host, address.port or 443), REACHED_S).close()
    except OSError as error:
        logger.warning("Weights & Biases keeps the run in files (%s): send it with `wandb sync` later", error)
        return "offline"
    return "online"


def _has_key(host: str) -> bool:
    """Return whether there is a key for ``host`` in the environment, or where ``wandb login`` puts it."""
    try:
        return bool(os.environ.get("WANDB_API_KEY")) or netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, NetrcParseError):
        return False
