"""Records a run in MLflow without making it wait.

MLflow's calls are slow: making the database takes seconds, and a remote server may take any time. One thread makes them
all, and takes records from a bounded queue, so that training never waits. What always holds: records arrive in the
order in which they were made; once a call has failed, the next call of the tracker raises its error; no record is
dropped silently.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from asyncrl.core.errors import AsyncRLError, DeadlineExceeded
from asyncrl.core.files.file_errors import explained, naming
from asyncrl.core.process.long_import import long_import
from asyncrl.core.recipe.flatten import flatten
from asyncrl.core.recipe.schema import Recipe, TrackingConfig
from asyncrl.core.text import without_passwords
from asyncrl.run.folder.config_yaml import resolved_yaml
from asyncrl.run.folder.disk import POLL_S, ROOM_BYTES, free_bytes
from asyncrl.run.folder.run_folder import RunFolder
from asyncrl.run.measures.measure_file import StepMeasure, append
from asyncrl.run.measures.metric_names import parameter_name
from asyncrl.run.measures.metrics import REWARD
from asyncrl.run.measures.summary import Status
from asyncrl.run.tracking.further_trackers import FurtherTracker, make_further_tracker
from asyncrl.run.tracking.mlflow_store import experiment_of, keep_mlflow_quiet, nested_in, only_one_makes, original_of
from asyncrl.run.tracking.opentelemetry_spans import NAME as OPENTELEMETRY
from asyncrl.run.tracking.opentelemetry_spans import OpenTelemetrySpans
from asyncrl.run.tracking.paced_traces import PacedTraces
from asyncrl.run.tracking.sqlite_address import sqlite_uri
from asyncrl.run.tracking.traces import Traces
from asyncrl.run.tracking.tracking_check import CREDENTIALS, LOCKED, elsewhere, wants_credentials

if TYPE_CHECKING:
    from mlflow import MlflowClient

logger = logging.getLogger(__name__)

T = TypeVar("T")

_DELETED = "must be in the 'active' state"
"""What MLflow says of a run, or of an experiment, that somebody has deleted."""
_MLFLOW = "MLflow"

QUEUE_LENGTH = 10_000
"""How many records may wait. It takes hours of training to fill the queue, so then the tracking server is gone."""
METRICS_A_CALL = 1000
PARAMETERS_A_CALL = 100
"""The most that MLflow takes in one call."""

_MLFLOW_STATUS = {Status.COMPLETED: "FINISHED", Status.INTERRUPTED: "KILLED", Status.FAILED: "FAILED"}


class TrackingFailed(AsyncRLError):
    """MLflow refused a record, cannot be reached, or cannot keep up."""


def _first_said(error: Exception) -> str:
    """What an error of MLflow says, without what SQLAlchemy adds: hints for its callers, the statement, and all its values."""
    said = str(error).partition("\n[SQL: ")[0].splitlines()
    return " ".join(line for line in said if not line.startswith("(raised as a result of")) or type(error).__name__


class _Values(msgspec.Struct, frozen=True):
    step: int
    time_ms: int
    values: dict[str, float]


class _Measured(msgspec.Struct, frozen=True):
    time_s: float
    measure: StepMeasure


class _Trained(msgspec.Struct, frozen=True):
    step: int


class _Evaluated(msgspec.Struct, frozen=True):
    version: int


class _End(msgspec.Struct, frozen=True):
    status: Status


_Record = _Values | _Measured | _Trained | _Evaluated | _End


class Tracker:
    """One MLflow run. Call :meth:`start` once, then log from any thread, then :meth:`finish` once.

    Logging raises ``TrackingFailed`` if this or an earlier record could not be kept.
    """

    def __init__(self, recipe: Recipe, folder: RunFolder) -> None:
        self._recipe, self._folder = recipe, folder
        self.uri = tracking_uri(recipe.tracking, folder)
        self._shown_uri = without_passwords(self.uri)
        self._records: queue.Queue[_Record] = queue.Queue(QUEUE_LENGTH)
        self._failure: Exception | None = None
        self._further: list[tuple[str, FurtherTracker]] = []
        self._tracked_step = -1
        """The last step tracked before the run was resumed: steps up to it that are done again are not tracked again."""
        self._called = _MLFLOW
        """The tracker that is being called."""
        # A daemon thread, so that a server that never answers cannot keep the process alive after finish() has given up.
        self._thread = threading.Thread(target=self._work, name="tracking", daemon=True)

    def start(self) -> None:
        """Start the thread that makes the MLflow run or, after a resume, finds it again. Returns at once."""
        keep_mlflow_quiet()
        self._thread.start()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Record metrics of a training step; returns at once."""
        self._put(_Values(step, int(time.time() * 1000), dict(values)))

    def log_measure(self, measure: StepMeasure) -> None:
        """Add a training step to the run's ``measures.jsonl``; returns at once."""
        self._put(_Measured(time.time(), measure))

    def log_trained(self, step: int) -> None:
        """Record traces of the episodes that are kept of a training step, as time allows; returns at once."""
        self._put(_Trained(step))

    def log_evaluated(self, version: int) -> None:
        """Record traces of the episodes that are kept of an evaluation; returns at once."""
        self._put(_Evaluated(version))

    def finish(self, status: Status, seconds: float) -> None:
        """Write out everything and end the MLflow run, within ``seconds``. Blocks: call it beside an event loop, not in it.

        Raises:
            TrackingFailed: some record could not be kept.
            DeadlineExceeded: a tracker took too long; records that still waited are lost.
        """
        self._put(_End(status))
        self._thread.join(seconds)
        if self._thread.is_alive():
            called, waiting = self._called, self._records.qsize()
            if called == _MLFLOW:
                remedy = f"{waiting} records are not in {self._shown_uri}; check that it can be reached"
            else:
                remedy = f"{waiting} records wait behind it; check that it can be reached, or take it out of tracking.also"
            raise DeadlineExceeded("the run", f"{called} to take in the last records", seconds, remedy)
        self._raise_failure()

    def _put(self, record: _Record) -> None:
        self._raise_failure()
        try:
            self._records.put_nowait(record)
        except queue.Full:
            raise TrackingFailed(
                f"{QUEUE_LENGTH} records wait for {self._shown_uri}; check that it can be reached, or leave tracking.uri empty"
            ) from None

    def _raise_failure(self) -> None:
        failure = self._failure
        if failure is None:
            return
        if isinstance(failure, TrackingFailed):
            raise failure
        if isinstance(failure, OSError) and failure.filename is not None:
            problem = explained(failure)
        else:
            remedy = "check tracking.uri, or leave it empty to track beside the run folder"
            if not self._recipe.tracking.uri:
                remedy = f"put {self._folder.database} back as it was, or {elsewhere(self._folder)}"
            said = without_passwords(_first_said(failure))
            if wants_credentials(said):
                remedy = CREDENTIALS
            elif _DELETED in said:
                remedy = "restore it (mlflow runs restore, or mlflow experiments restore), then resume"
            problem = f"MLflow at {self._shown_uri}: {said}; {remedy}"
        raise TrackingFailed(problem) from failure

    def _work(self) -> None:
        try:
            with long_import():
                from mlflow import MlflowClient

            known = self._is_known()  # before the client makes a database where there is none
            with only_one_makes(self.uri):
                client: MlflowClient = self._with_room(partial(MlflowClient, self.uri))
            run_id = self._go_on(client) if known and self._has_run(client) else self._new_run(client)
            for name in self._recipe.tracking.also:
                if name != OPENTELEMETRY:
                    make = partial(make_further_tracker, name, self._recipe, self._folder, run_id)
                    self._further.append((name, self._call_further(name, make)))
            spans: OpenTelemetrySpans | None = None
            if OPENTELEMETRY in self._recipe.tracking.also:
                spans = self._call_further(OPENTELEMETRY, partial(OpenTelemetrySpans, self._folder.path.name, run_id))
            stores = {_MLFLOW: Traces(client, run_id).log, **({} if spans is None else {OPENTELEMETRY: spans.log})}
            traces = PacedTraces(self._recipe, self._folder.trajectories, stores, self._call)
            for record in self._batches():
                match record:
                    case _End(status=status):
                        if status is Status.COMPLETED:
                            traces.completed()
                        self._with_room(partial(client.set_terminated, run_id, _MLFLOW_STATUS[status]))
                        self._with_further(methodcaller("end", status))
                        if spans is not None:
                            spans.end()
                    case _Measured(time_s=time_s, measure=measure):
                        self._with_room(partial(append, self._folder.measures, measure))
                        if spans is not None and measure.step > self._tracked_step:
                            self._call_further(OPENTELEMETRY, partial(spans.step, measure, time_s))
                    case _Trained(step=step):
                        traces.trained(step)
                    case _Evaluated(version=version):
                        traces.evaluated(version)
                    case _:
                        new = [values for values in record if self._is_new(values)]
                        self._with_room(partial(_log_values, client, run_id, new))
                        self._with_further(partial(_log_further, records=new))
        except Exception as error:
            # Whatever MLflow, its database or its HTTP client raise belongs to the tracker's owner, not to this thread.
            logger.exception("tracking failed")
            self._failure = error

    def _with_further(self, write: Callable[[FurtherTracker], None]) -> None:
        """Call ``write`` with each tracker beside MLflow."""
        for name, tracker in self._further:
            self._call_further(name, partial(write, tracker))

    def _call_further(self, name: str, call: Callable[[], T]) -> T:
        """Make a ``call`` of the tracker ``name`` beside MLflow, whose errors name that tracker."""
        try:
            return self._call(name, call)
        except Exception as error:
            remedy = f"correct that and resume, or resume without it (--resume {self._folder.path} 'tracking.also=[]')"
            raise TrackingFailed(f"{name}: {error}; {remedy}") from error

    def _call(self, name: str, call: Callable[[], T]) -> T:
        """Make a ``call`` of the tracker ``name``, which :meth:`finish` names if it takes too long."""
        self._called = name
        try:
            return self._with_room(call)
        finally:
            self._called = _MLFLOW

    def _with_room(self, write: Callable[[], T]) -> T:
        """Call ``write``, again and again while it fails because the disk is full or other runs write to the same database."""
        failed = 0
        locked = False
        while True:
            room_before = free_bytes(self._folder.path) >= ROOM_BYTES
            try:
                result = write()
                break
            except Exception as error:
                locked = LOCKED in str(error)
                # There may be room again by the time we look.
                if not locked and (self._recipe.tracking.uri or (room_before and free_bytes(self._folder.path) >= ROOM_BYTES)):
                    raise
                if not failed:
                    what = f"other users of {self._shown_uri}" if locked else "room on the disk"
                    logger.warning("tracking waits for %s: %s", what, str(error).partition("\n")[0])
                failed += 1
                time.sleep(POLL_S)
        if failed:
            again = "the database is free" if locked else "the disk has room"
            logger.warning("%s again: tracking goes on, after %d failed attempts", again, failed)
        return result

    def _is_new(self, record: _Values) -> bool:
        return record.step > self._tracked_step or REWARD.name not in record.values

    def _is_known(self) -> bool:
        """Whether the run was tracked before, and tracking can go on in the same place."""
        if not self._folder.tracked_as.is_file():
            return False
        if self._recipe.tracking.uri or self._folder.database.is_file():
            return True
        logger.warning("%s is gone, with all metrics so far: tracking begins anew", self._folder.database)
        return False

    def _has_run(self, client: "MlflowClient") -> bool:
        """Whether the run is known where it is tracked now, as this run: a resume may name another place than before, and a copy
        of a run has the id of another."""
        from mlflow.exceptions import MlflowException

        try:
            run = self._with_room(partial(client.get_run, self._folder.read_tracked_as()))
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            logger.warning(
                "%s does not know the run that %s names: tracking begins anew", self._shown_uri, self._folder.tracked_as
            )
            return False
        if run.info.lifecycle_stage == "deleted":
            logger.warning("in %s the run of %s is deleted: tracking begins anew", self._shown_uri, self._folder.tracked_as)
            return False
        original = original_of(self._folder, self._recipe, run.info.run_name or "")
        if original is not None:
            logger.warning("%s is a copy of %s, which has its metrics so far: tracking begins anew", self._folder.path, original)
        return original is None

    def _go_on(self, client: "MlflowClient") -> str:
        """Go on with the MLflow run that a resumed run had, and return its id."""
        run_id = self._folder.read_tracked_as()
        self._with_room(partial(client.update_run, run_id, status="RUNNING"))
        history = self._with_room(partial(client.get_metric_history, run_id, REWARD.name))
        self._tracked_step = max((m.step for m in history), default=-1)
        return run_id

    def _new_run(self, client: "MlflowClient") -> str:
        from mlflow.entities import Param

        experiment = self._with_room(partial(experiment_of, client, self._recipe.tracking.experiment, self.uri))
        tags = nested_in(self._folder.path.parent)
        run = self._with_room(partial(client.create_run, experiment, tags=tags, run_name=self._folder.path.name))
        values = flatten(msgspec.to_builtins(self._recipe))
        parameters = [Param(parameter_name(key), without_passwords(str(value))) for key, value in values]
        run_id: str = run.info.run_id
        for chunk in _chunks(parameters, PARAMETERS_A_CALL):
            self._with_room(partial(client.log_batch, run_id, params=chunk))
        recipe = without_passwords(resolved_yaml(self._recipe))
        self._with_room(partial(client.log_text, run_id, recipe, self._folder.recipe.name))
        self._with_room(partial(_write_text, self._folder.tracked_as, run_id))
        return run_id

    def _batches(self) -> Iterator[Sequence[_Values] | _Measured | _Trained | _Evaluated | _End]:
        """Records until the end. Metrics that wait at the same time come together, for one transaction; what else
        waits among them comes after them, in order."""
        waiting: list[_Values] = []
        others: list[_Measured | _Trained | _Evaluated] = []
        while True:
            record = self._records.get()
            match record:
                case _Values():
                    waiting.append(record)
                case _Measured() | _Trained() | _Evaluated():
                    others.append(record)
            if not isinstance(record, _End) and not self._records.empty():
                continue
            if waiting:
                yield waiting
            yield from others
            if isinstance(record, _End):
                yield record
                return
            waiting, others = [], []


def tracking_uri(config: TrackingConfig, folder: RunFolder) -> str:
    """Where the run is tracked: ``tracking.uri``, or a SQLite file: :attr:`RunFolder.database`."""
    return config.uri or sqlite_uri(folder.database)


def _write_text(path: Path, text: str) -> None:
    with naming(path):
        path.write_text(text, encoding="utf-8")


def _log_further(tracker: FurtherTracker, records: Sequence[_Values]) -> None:
    for record in records:
        tracker.log(record.step, record.time_ms / 1000, record.values)
    tracker.flush()


def _log_values(client: "MlflowClient", run_id: str, records: Sequence[_Values]) -> None:
    from mlflow.entities import Metric

    metrics = [Metric(name, value, record.time_ms, record.step) for record in records for name, value in record.values.items()]
    for chunk in _chunks(metrics, METRICS_A_CALL):
        client.log_batch(run_id, metrics=chunk)


def _chunks(items: list[Any], size: int) -> Iterator[list[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
