"""What goes to MLflow and further trackers: metrics, traces, and the check before the run."""
