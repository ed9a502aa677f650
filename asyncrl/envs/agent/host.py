"""Runs an agent's function in a process of its own for each episode, forked from one that has imported the function's module.

It is run as a file by the agent's own interpreter, and so it imports the standard library alone. What always holds: the module is
imported once; each episode has its own environment variables, folder and output; nothing that an episode started outlives it; and
when the worker's end of the socket is closed, this process ends.

Messages are JSON, one a packet. The worker sends ``{"play": ID, "task": FILE, "folder": FOLDER, "variables": {...}}`` with the
descriptors of the episode's standard output and error, and ``{"end": ID}``. It gets ``{"ready": [REMARK, ...]}`` once, and
``{"ended": ID, "status": STATUS}`` for each episode.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import importlib.util
import inspect
import json
import numbers
import os
import selectors
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from types import TracebackType
from typing import Any

NO_MODEL_YET = "http://127.0.0.1:9/made-while-the-module-was-imported"
"""The base URL of models while the module is imported, when there is no episode: nobody listens there."""
OLDEST = (3, 9)
"""The oldest Python that this file runs on."""
_LARGEST_MESSAGE = 1 << 17
_CLIENTS = ("openai", "anthropic")
"""Packages whose clients are looked for among what the module has made."""


class Unusable(Exception):
    """There is no such function."""


def main(arguments: list[str]) -> None:
    """Serve until the worker closes its end of the socket, which is the standard input.

    Args:
        arguments: the file of :mod:`asyncrl.envs.sandbox.processes`, ``module:function``, and folders in which modules are found.
    """
    processes_file, name, *folders = arguments
    control = socket.socket(fileno=os.dup(0))
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    sys.path[:] = [*sys.path[1:], *(folder for folder in folders if folder not in sys.path)]  # the first is this file's folder
    processes = _loaded(processes_file)
    processes.adopt_orphans()
    try:
        function = _imported(name)
    except Unusable as problem:
        sys.exit(str(problem))
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # forks would write it again
    control.send(json.dumps({"ready": _remarks()}).encode())
    _Host(control, function, processes).serve()


def _loaded(file: str) -> Any:
    """Load a file as a module, whose package this interpreter may not have."""
    spec = importlib.util.spec_from_file_location("agent_processes", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _imported(name: str) -> Callable[[Any], Any]:
    module_name, _, attribute = name.partition(":")
    if sys.version_info < OLDEST:
        raise Unusable(f"{sys.executable} is Python {sys.version.split()[0]}; agents need {'.'.join(map(str, OLDEST))} or newer")
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if not f"{module_name}.".startswith(f"{error.name}."):
            raise
        raise Unusable(f"there is no module {module_name!r} for {sys.executable}, which looks in {sys.path}") from error
    found = getattr(module, attribute, None)
    if not callable(found):
        functions = sorted(
            key for key, value in vars(module).items() if inspect.isfunction(value) and value.__module__ == module_name
        )
        known = f"it has the functions {', '.join(functions)}" if functions else "it has no functions"
        raise Unusable(f"module {module_name} has no function {attribute!r}; {known}")
    result: Callable[[Any], Any] = found
    return result


def _remarks() -> list[str]:
    """Return what importing the module has done that episodes will miss."""
    remarks = []
    if threads := sorted(each.name for each in threading.enumerate() if each is not threading.main_thread()):
        remarks.append(
            f"importing it started threads ({', '.join(threads)}), which episodes lack: they have forks of the process"
        )
    of_clients = (each for each in gc.get_objects() if str(type(each).__module__).partition(".")[0] in _CLIENTS)
    made = {type(each).__module__.partition(".")[0] for each in of_clients if NO_MODEL_YET in _address(each)}
    clients = (f"importing it made a client of {package}, which reaches no model: make it in the function" for package in made)
    return [*remarks, *sorted(clients)]


def _address(client: object) -> str:
    """Return the base URL that an object holds if it is a client; asks only what lies there, as libraries have lazy objects."""
    try:
        return str(object.__getattribute__(client, "__dict__").get("_base_url", ""))
    except AttributeError:
        return ""


class _Host:
    """Forks a process for each episode, and tells the worker of its end."""

    def __init__(self, control: socket.socket, function: Callable[[Any], Any], processes: Any) -> None:
        self._control, self._function, self._processes = control, function, processes
        self._own = set(processes.orphans_except(set()))
        """Processes that importing the module has started."""
        self._playing: dict[int, int] = {}
        """The episode of each process."""
        self._signals, self._woken = socket.socketpair()
        for end in (self._signals, self._woken):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(self._woken.fileno(), warn_on_full_buffer=False)
        gc.collect()
        gc.freeze()  # a collection in a fork would copy all pages

    def serve(self) -> None:
        """Serve until the worker is gone."""
        selector = selectors.DefaultSelector()
        selector.register(self._control, selectors.EVENT_READ, self._asked)
        selector.register(self._signals, selectors.EVENT_READ, self._reap)
        while True:
            for key, _ in selector.select():
                key.data()

    def _asked(self) -> None:
        packet, descriptors, _, _ = socket.recv_fds(self._control, _LARGEST_MESSAGE, 2)
        if not packet:
            self._processes.kill_descendants()
            os._exit(0)
        message = json.loads(packet)
        if "play" in message:
            self._fork(message, descriptors)
            return
        for process in [process for process, episode in self._playing.items() if episode == message["end"]]:
            os.kill(process, signal.SIGSTOP)  # it would go on to start others
            self._processes.kill_below(process)
            os.kill(process, signal.SIGKILL)

    def _fork(self, message: dict[str, Any], descriptors: list[int]) -> None:
        host = os.getpid()
        process = os.fork()
        if process:
            self._playing[process] = message["play"]
            for descriptor in descriptors:
                os.close(descriptor)
            return
        status = 1
        try:
            self._become_episode(host, descriptors, message)
            status = _played(self._function, message["task"])
        except SystemExit as end:
            status = _exit_status(end)
        except BaseException as error:  # noqa: BLE001 - whatever the agent's code raises
            traceback.print_exception(type(error), error, _without_ours(error.__traceback__))
        finally:
            try:
                for stream in (sys.stdout, sys.stderr):
                    stream.flush()
                self._processes.kill_descendants()
            finally:
                os._exit(status)  # whatever fails here, the episode must not go on as a second host

    def _become_episode(self, host: int, descriptors: list[int], message: dict[str, Any]) -> None:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for end in (self._control, self._signals, self._woken):
            end.close()
        os.setsid()
        self._processes.adopt_orphans()
        self._processes.end_with_parent(host, signal.SIGKILL)
        for standard, descriptor in zip((1, 2), descriptors):  # noqa: B905 - it has no `strict` in old Pythons
            os.dup2(descriptor, standard)
            os.close(descriptor)
        os.environ.update(message["variables"])
        os.chdir(message["folder"])
        for name, reseed in (("numpy.random", "seed"), ("torch", "seed")):  # forks would draw the same numbers; Python's do not
            if name in sys.modules:
                getattr(sys.modules[name], reseed)()

    def _reap(self) -> None:
        self._signals.recv(1 << 12)
        while True:
            try:
                process, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not process:
                return
            self._own.discard(process)
            episode = self._playing.pop(process, None)
            self._processes.kill_orphans_except(self._own | self._playing.keys())
            if episode is not None:
                code = os.waitstatus_to_exitcode(status)
                ended = {"ended": episode, "status": code if code >= 0 else 128 - code}
                self._control.send(json.dumps(ended).encode())


def _played(function: Callable[[Any], Any], task: str) -> int:
    """Have the function play, and write down what it returns; returns the exit status."""
    with open(task, encoding="utf-8") as file:
        result = function(json.load(file))
    if inspect.iscoroutine(result):
        result = asyncio.run(result)
    result = _plain(result)
    if result is None:
        return 0
    if isinstance(result, str):
        result = {"answer": result}
    elif isinstance(result, numbers.Real):
        result = {"reward": float(result)}
    elif not isinstance(result, dict):
        problem = (
            f"the agent's function returned {result!r:.200}; it must return an answer (text), a reward (a number), or a dict"
        )
        raise TypeError(f"{problem} such as {{'reward': 1.0, 'answer': '42'}}, or None")
    with open(os.environ["ASYNCRL_RESULT"], "w", encoding="utf-8") as file:
        json.dump(result, file, allow_nan=False, default=_number)
    return 0


def _plain(value: Any) -> Any:
    """Return Python's own of a number of numpy or torch, or of an array of one; any other value as it is."""
    try:
        return value.item()
    except (AttributeError, TypeError, ValueError, RuntimeError):  # the last two are of arrays of several
        return value


def _number(value: Any) -> Any:
    """Return the number that one of numpy or torch is; raises ``TypeError`` if it is none."""
    number = _plain(value)
    if number is value:
        raise TypeError(f"the agent's function returned {value!r:.200} in its dict, which must hold texts and numbers")
    return number


def _without_ours(raised: TracebackType | None) -> TracebackType | None:
    """Return a traceback without its first frames, which are of this file; all of it if there are no others."""
    rest = raised
    while rest is not None and rest.tb_frame.f_code.co_filename == __file__:
        rest = rest.tb_next
    return raised if rest is None else rest


def _exit_status(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return (end.code or 0) & 0xFF
    sys.stderr.write(f"{end.code}\n")
    return 1


if __name__ == "__main__":
    main(sys.argv[1:])
