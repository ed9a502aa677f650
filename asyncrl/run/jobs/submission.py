"""Gives a run to a Ray cluster as a job, by Ray's own job API."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.host.brought_folder import FolderToBring
from asyncrl.run.jobs.attempts import fixed_place

STOP_S = 60
"""How long Ray waits for a run that was asked to end before it kills it, in seconds."""


def submittable(recipe: Recipe, source: str) -> str:
    """Return the name of the recipe in the job's folder, which is a copy of the current one.

    Args:
        source: the recipe as it was named: a file, or a shipped recipe.

    Raises:
        RecipeError: its files would be in the job's own folder, or the recipe is not below the current one.
    """
    if not fixed_place(recipe):
        problem = f"{recipe.run_dir!r} would be in the folder of the job, which is removed with it"
        raise RecipeError("run_dir", problem, "name a shared folder by its whole path, or an address as s3://BUCKET/runs")
    if not Path(source).is_file():
        return source
    if not Path(source).resolve().is_relative_to(Path.cwd()):
        remedy = "change into the folder that holds the recipe and what it names: it is brought to the cluster"
        raise RecipeError("", f"{source!r} is not below {Path.cwd()}", remedy)
    return str(Path(source).resolve().relative_to(Path.cwd()))


def submit(url: str, name: str, arguments: Sequence[str], folder: FolderToBring) -> None:
    """Submit ``asyncrl ARGUMENTS`` as the job ``name`` to the cluster whose dashboard is at ``url``, in a copy of ``folder``.

    Credentials of stores do not go with it, since whoever sees the dashboard would read them: the cluster's nodes have their own.

    Raises:
        RecipeError: the folder cannot go with it, or the cluster cannot be reached or does not take the job.
    """
    if folder.problem:
        raise RecipeError("--submit", f"{folder.path} cannot go with the job: {folder.problem}", folder.remedy)
    from ray.job_submission import JobSubmissionClient

    try:
        client = JobSubmissionClient(url)
        client.submit_job(
            entrypoint=shlex.join(("asyncrl", *arguments)),
            submission_id=name,
            runtime_env={
                **folder.runtime_env,
                "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_S)},
            },
        )
    except (RuntimeError, ConnectionError, ValueError, OSError) as error:
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        problem = f"the cluster at {url} does not take the job: {why}"
        raise RecipeError("--submit", problem, "name its dashboard, as http://HEAD:8265; it needs ray[default]") from error
