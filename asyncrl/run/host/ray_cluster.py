"""Joins the Ray cluster of a run, or starts one for the run alone, and ends what was started."""

import asyncio
import contextlib
import logging
import os
import secrets
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.exceptions import RuntimeEnvSetupError
from ray.job_config import JobConfig

from asyncrl.core.errors import ComponentFailed
from asyncrl.core.network.socket_folder import socket_folder
from asyncrl.run.host.brought_folder import runtime_env
from asyncrl.run.host.gpus import usable
from asyncrl.run.host.signals import sigterm_blocked

logger = logging.getLogger(__name__)

OBJECT_STORE_BYTES = 256 << 20
"""Size of Ray's object store in a cluster that the run starts itself; batches pass through it, weights do not."""
_SOCKET = len("/ray-1234567/session_2026-01-01_00-00-00_123456_1234567/sockets/plasma_store")
"""Bytes of the path of one of Ray's sockets, below the folder for temporary files."""
LOOPBACK_S = 5.0
"""How long this machine may take to connect to itself."""
AGENT_START_S = 120.0
"""How long Ray's agents may take to start, once their ports are given."""


def start_ray(tell: Callable[[str], None] = logger.warning) -> None:
    """Join the Ray cluster that ``RAY_ADDRESS`` names, or start one for this run alone on this machine.

    Args:
        tell: called with what is brought to other nodes, or what they will lack, and when Ray is started once more.

    Raises:
        ComponentFailed: Ray did not start, the cluster cannot be joined, or Ray cannot pack what it shall bring.
    """
    address = os.environ.get("RAY_ADDRESS")
    worker: Any = ray._private.worker
    worker.print_to_stdstream = _log  # Ray would write its messages in between what the run shows
    try:
        if address:
            brought = runtime_env(tell)
            ray.init(log_to_driver=False, logging_level=logging.ERROR, runtime_env=brought, job_config=_Job())
        else:
            _check_loopback()
            _start_own_ray(tell)
    except RuntimeEnvSetupError as error:
        why = str(error).strip().splitlines()[-1]
        remedy = "make room where Ray keeps its files on this machine, or name in .rayignore what other nodes do not need"
        raise ComponentFailed(f"Ray cannot bring to other nodes what they need: {why}; {remedy}") from error
    except Exception as error:  # Ray raises errors of any class, even a plain Exception
        problem = f"cannot join Ray at {address}" if address else "Ray did not start"
        remedy = "see RAY_ADDRESS" if address else f"see its logs in {_logs_folder()}; if this machine is very busy, try again"
        raise ComponentFailed(f"{problem}: {str(error).strip() or type(error).__name__}; {remedy}") from error


def _log(message: dict[str, Any], ignore_prefix: bool) -> None:
    """Log what Ray says of its nodes and of calls that it makes again."""
    logger.warning("Ray: %s", " ".join(message["lines"]))


def _check_loopback() -> None:
    """Check that this machine can connect to itself; if it cannot, Ray would wait for its own processes for minutes.

    Raises:
        OSError: this machine cannot connect to itself.
    """
    try:
        with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname(), LOOPBACK_S):
            pass
    except OSError as error:
        why = error.strerror or "no answer"
        raise OSError(f"this machine cannot connect to itself at 127.0.0.1 ({why}); bring its loopback interface up") from error


def _start_own_ray(tell: Callable[[str], None]) -> None:
    if not os.environ.keys() & {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"}:
        # Whoever can call Ray can run code. By default its token is in the home folder: read-only, perhaps, or public.
        os.environ["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    # Three processes serve nobody here, and there is no setting for them. Each takes more than half a second of processor time to
    # start, and one of them looks at all logs again and again.
    node: Any = ray._private.node.Node
    node.start_api_server = node.start_log_monitor = node.start_monitor = _start_nothing
    before = set(psutil.Process().children(recursive=True))
    try:
        _init_ray()
    except Exception as error:
        # Ray's node manager ends itself when one of its agents has not told its ports within 15 s, which no setting changes
        # (https://github.com/ray-project/ray/issues/65983).
        if "timed out during startup" not in str(error):
            raise
        tell("Ray did not start in time, as on a very busy machine; starting it once more, without its deadline for its agents")
        own = os.path.dirname(ray.__file__)
        for process in set(psutil.Process().children(recursive=True)) - before:
            with contextlib.suppress(psutil.NoSuchProcess):
                if own in " ".join(process.cmdline()):  # others may have started processes of their own meanwhile
                    process.kill()
        node.start_api_server = _give_agent_ports
        _init_ray(_system_config={"agent_register_timeout_ms": int(AGENT_START_S * 1e3)})


class _Job(JobConfig):
    """Has no process look for modules in the current folder first, as Ray would: a file of a library's name would hide it.

    What imports a module of the user's own (:func:`asyncrl.core.plug_ins.plug_in.import_module`) looks there last.
    """

    def _serialize(self) -> str:
        self._py_driver_sys_path = [place for place in self._py_driver_sys_path if place != os.getcwd()]
        return super()._serialize()


def _init_ray(**further: Any) -> None:
    ray.init(
        address="local",
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        object_store_memory=OBJECT_STORE_BYTES,
        num_gpus=usable(),
        _temp_dir=_folder(),
        job_config=_Job(),
        **further,
    )


def _folder() -> str | None:
    """A folder of Ray's for sockets and logs where the usual one would be too long; None for the usual one."""
    if "RAY_TMPDIR" in os.environ or (folder := socket_folder(_SOCKET)) == Path(tempfile.gettempdir()):
        return None
    return str(folder / f"ray-{os.getuid()}")


def _logs_folder() -> str:
    """The folder that Ray makes one in for each session."""
    return _folder() or os.path.join(os.environ.get("RAY_TMPDIR") or tempfile.gettempdir(), "ray")


def _start_nothing(*_: Any, **__: Any) -> None:
    """Stand for what starts one of Ray's processes."""


def _give_agent_ports(node: Any, **_: Any) -> None:
    """Have Ray's agents listen at ports that are free now, and write the files that say which, before the node manager starts."""
    raylet: Any = ray._raylet
    with contextlib.ExitStack() as held:
        for name in ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port"):
            port = held.enter_context(socket.create_server(("", 0))).getsockname()[1]
            node._ray_params.update(**{name: port})
            raylet.persist_port(node.get_session_dir_path(), node._node_id, name, port)


def stop_ray() -> Path | None:
    """Leave Ray, and end the processes that :func:`start_ray` started; returns the folder with their logs and sockets.

    If it started none, it returns None.
    """
    node: Any = ray._private.worker._global_node
    session: Path | None = None
    if node is not None and node.all_processes:
        session = Path(node.get_session_dir_path())
        for process in chain.from_iterable(node.all_processes.values()):
            # They have SIGTERM blocked, and Ray would wait a second for each of them before it kills it.
            process.process.terminate = process.process.kill
    ray.shutdown()
    return session


def remove_session(session: Path) -> None:
    """Remove the folder that :func:`stop_ray` returned, once its processes have ended; Ray itself would keep it for ever."""
    shutil.rmtree(session, ignore_errors=True)
    latest = session.with_name("session_latest")
    if latest.is_symlink() and not latest.exists():
        latest.unlink(missing_ok=True)


def starting_ray(tell: Callable[[str], None] = logger.warning) -> "asyncio.Future[None]":
    """Run :func:`start_ray` in a daemon thread that never ends: the kernel ends Ray's processes with the *thread* that
    started them.
    """
    loop = asyncio.get_running_loop()
    started: asyncio.Future[None] = loop.create_future()

    def work() -> None:
        try:
            with sigterm_blocked():
                start_ray(tell)
        except BaseException as error:  # noqa: BLE001 - raised where the future is awaited
            outcome = partial(started.set_exception, error)
        else:
            outcome = partial(started.set_result, None)
        with contextlib.suppress(RuntimeError):  # the loop was closed meanwhile: nobody waits
            loop.call_soon_threadsafe(outcome)
        threading.Event().wait()

    threading.Thread(target=work, name="Ray", daemon=True).start()
    return started
