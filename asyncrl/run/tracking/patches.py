"""The register of what the product reads or calls in MLflow that MLflow keeps to itself; see :mod:`asyncrl.core.reach`."""

from asyncrl.core.reach import Reach

REACHES = (
    Reach(
        files=("asyncrl/run/tracking/traces.py",),
        names=("mlflow.tracing.client.TracingClient", "mlflow.traceRequestId", "mlflow.traceTag"),
        why="store traces of episodes that are over, with their times, and see what the store refuses: what MLflow documents "
        "makes spans as they happen, and sends them by threads that swallow errors",
        test="tests/run/tracking/test_tracking.py::test_a_run_is_kept_whole_in_its_folder",
        needless="MlflowClient logs finished spans",
    ),
    Reach(
        files=("asyncrl/run/tracking/mlflow_tables.py",),
        names=("SQL.alembic_version",),
        why="see before a run starts that MLflow can use its tables, by the revision in the database and those that its files of "
        "migrations name: MLflow takes seconds to import, and says so only when the run begins to track",
        test="tests/run/tracking/test_tracking.py::test_tables_of_another_mlflow_are_told_before_anything_starts",
        needless="MLflow says of a database whether it can be used without changing it",
    ),
    Reach(
        files=("asyncrl/run/tracking/tracking_check.py",),
        names=("SQL.experiments", "SQL.runs"),
        why="see before a run starts that its experiment is not deleted and its run is known: MLflow takes seconds to import, "
        "and would make or change tables",
        test="tests/run/dry_run/test_dry_run.py::test_what_a_part_refuses_when_it_starts_the_plan_refuses",
        needless="MLflow reads a database without changing it",
    ),
)
"""What is reached in MLflow 3.14 and later."""
