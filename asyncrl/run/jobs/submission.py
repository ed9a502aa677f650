"""Gives a run to a Ray cluster as a job, by Ray's own job API."""

import shlex
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException, InvalidURL
from itertools import chain, count
from pathlib import Path
from ssl import SSLError
from typing import TYPE_CHECKING
from urllib.error import HTTPError
from urllib.parse import SplitResult, urlsplit

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.schema import Recipe
from asyncrl.run.host.brought_folder import FolderToBring
from asyncrl.run.jobs.attempts import fixed_place

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

STOP_S = 60
"""How long Ray waits for a run that was asked to end before it kills it, in seconds."""
ANSWER_S = 20.0
"""How long a dashboard may take to answer at all; Ray's client would wait for one for ever."""
_NAMED = "name its dashboard, as http://HEAD:8265; it needs ray[default]"
_OF_SOCKS = "Missing dependencies for SOCKS support"
"""What Ray's client says where it is to use a proxy that it cannot."""


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


def submit(url: str, name: str, arguments: Sequence[str], folder: FolderToBring) -> str:
    """Submit ``asyncrl ARGUMENTS`` as a job to the cluster whose dashboard is at ``url``, in a copy of ``folder``.

    Credentials of stores do not go with it, since whoever sees the dashboard would read them: the cluster's nodes have their own.

    Args:
        name: of the run.

    Returns:
        the job's name: that of the run, with a number if earlier jobs of the run have ended there.

    Raises:
        RecipeError: the folder cannot go with it, the cluster cannot be reached or does not take the job, or has one of the run
            that goes on.
    """
    if folder.problem:
        raise RecipeError("--submit", f"{folder.path} cannot go with the job: {folder.problem}", folder.remedy)
    check_answers(url)
    from ray.job_submission import JobSubmissionClient

    try:
        client = JobSubmissionClient(url)
        job = _free_name(client, url, name)
        client.submit_job(
            entrypoint=shlex.join(("asyncrl", *arguments)),
            submission_id=job,
            runtime_env={
                **folder.runtime_env,
                "env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": str(STOP_S)},
            },
        )
    except (RuntimeError, ConnectionError, ValueError, OSError) as error:
        if _OF_SOCKS in str(error):
            problem = f"{url} is reached by a SOCKS proxy (ALL_PROXY, HTTP_PROXY), for which Ray's client lacks a package"
            raise RecipeError("--submit", problem, 'pip install "requests[socks]"') from error
        raise RecipeError("--submit", f"the cluster at {url} does not take the job: {_why(error)}", _NAMED) from error
    return job


def check_answers(url: str) -> None:
    """Check that something answers at the address of a dashboard, whatever it says, unless only Ray's client can reach it.

    Raises:
        RecipeError: the address is none of HTTP, or nothing answers there.
    """
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname and (parts.port is None or parts.port)
    except ValueError:
        known = False
    if not known:
        raise RecipeError("--submit", f"{url!r} is no address of a dashboard", _NAMED)
    if _needs_rays_client(parts):
        return
    asked = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()  # a password is for Ray's client alone
    try:
        urllib.request.urlopen(f"{asked.rstrip('/')}/api/version", timeout=ANSWER_S).close()
    except HTTPError as error:
        error.close()
    except (InvalidURL, UnicodeError) as error:
        raise RecipeError("--submit", f"{url!r} is no address of a dashboard: {error}", _NAMED) from error
    except HTTPException as error:
        raise RecipeError("--submit", f"what answers at {url} does not speak HTTP", _NAMED) from error
    except OSError as error:
        why = getattr(error, "reason", None) or error
        if isinstance(why, SSLError):
            return  # it answers; Ray's client knows other certificates, such as those of REQUESTS_CA_BUNDLE
        raise RecipeError(
            "--submit", f"the cluster at {url} does not answer: {getattr(why, 'strerror', None) or why}", _NAMED
        ) from error


def _needs_rays_client(address: SplitResult) -> bool:
    """Whether an address is reached by a proxy of which urllib knows nothing: SOCKS, or one that is ``all_proxy`` alone."""
    proxies = urllib.request.getproxies()
    proxy = proxies.get(address.scheme) or proxies.get("all", "")
    known = address.scheme in proxies and not proxy.startswith("socks")
    return bool(proxy) and not known and not urllib.request.proxy_bypass(address.netloc.rpartition("@")[2])


def _free_name(client: "JobSubmissionClient", url: str, run: str) -> str:
    """The name of the next job of a run: the cluster keeps those of jobs that have ended, with their logs."""
    jobs = {job.submission_id: job.status for job in client.list_jobs()}
    of_run = {name: status for name, status in jobs.items() if name is not None and name.partition("~")[0] == run}
    for name, status in of_run.items():
        if not status.is_terminal():
            remedy = f"let it go on, or end it first: ray job stop --address {url} {name}"
            raise RecipeError("--submit", f"the cluster at {url} has a job {name!r} that goes on", remedy)
    names = chain((run,), (f"{run}~{number}" for number in count(2)))
    return next(name for name in names if name not in of_run)


def _why(error: Exception) -> str:
    """The first line of an error, or the last one of the traceback that Ray's server sends."""
    lines = str(error).strip(" .\n").splitlines() or [type(error).__name__]
    return lines[-1] if "Traceback (most recent call last)" in lines[0] else lines[0]
