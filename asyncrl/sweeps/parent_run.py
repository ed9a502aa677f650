"""The run in MLflow that those of a sweep's points are nested in: its parameters say what was swept, its status how it ended."""

from asyncrl.core.files.whole_file import write_whole
from asyncrl.core.recipe.schema import TrackingConfig
from asyncrl.core.text import without_passwords
from asyncrl.run.measures.metric_names import parameter_name
from asyncrl.run.tracking.mlflow_store import errors_of_mlflow, experiment_of, keep_mlflow_quiet, only_one_makes
from asyncrl.run.tracking.sqlite_address import sqlite_uri
from asyncrl.run.tracking.tracker import TrackingFailed
from asyncrl.sweeps.sweep import Sweep
from asyncrl.sweeps.sweep_folder import SweepFolder

_LONGEST_VALUE = 500
"""Characters of a parameter's value, which every store of MLflow takes."""


class TrackedSweep:
    """A sweep in MLflow. Making it finds the sweep's run there, or begins it.

    Args:
        tracking: that of the points.

    Raises:
        TrackingFailed: MLflow refuses it, or cannot be reached.
    """

    def __init__(self, folder: SweepFolder, sweep: Sweep, tracking: TrackingConfig) -> None:
        keep_mlflow_quiet()
        self._uri = tracking.uri or sqlite_uri(folder.path / "mlflow.db")
        try:
            self._begin(folder, sweep, tracking.experiment)
        except errors_of_mlflow() as error:
            raise self._failed(error) from error

    def _begin(self, folder: SweepFolder, sweep: Sweep, experiment: str) -> None:
        from mlflow import MlflowClient
        from mlflow.exceptions import MlflowException

        with only_one_makes(self._uri):
            self._client = MlflowClient(self._uri)
            place = experiment_of(self._client, experiment, self._uri)
        if folder.tracked_as.is_file():
            self._run_id = folder.tracked_as.read_text(encoding="utf-8")
            try:
                self._client.update_run(self._run_id, status="RUNNING")
                return
            except MlflowException as error:
                if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                    raise
        self._run_id = str(self._client.create_run(place, run_name=folder.path.name).info.run_id)
        for axis in sweep.axes:
            self._log(parameter_name(axis.key.lstrip("+~")), ", ".join(axis.values))
        self._log("seeds", ", ".join(map(str, sweep.seeds)))
        write_whole(folder.tracked_as, self._run_id.encode())

    def _log(self, key: str, value: str) -> None:
        self._client.log_param(self._run_id, key, value[:_LONGEST_VALUE])

    def end(self, status: str) -> None:
        """Say how the sweep ended: ``FINISHED``, ``FAILED`` or ``KILLED``.

        Raises:
            TrackingFailed: MLflow cannot be reached.
        """
        try:
            self._client.set_terminated(self._run_id, status)
        except errors_of_mlflow() as error:
            raise self._failed(error) from error

    def _failed(self, error: Exception) -> TrackingFailed:
        problem = without_passwords(f"MLflow at {self._uri}: {str(error).partition(chr(10))[0]}")
        return TrackingFailed(f"{problem}; check that it can be reached")
