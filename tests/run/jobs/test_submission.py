"""Jobs that Ray's own client submits to a dashboard, whose server here says of its jobs what a test wants."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from ssl import SSLCertVerificationError
from urllib.error import URLError

import pytest

from asyncrl.core.errors import RecipeError
from asyncrl.run.host.brought_folder import folder_to_bring
from asyncrl.run.jobs import submission
from asyncrl.run.jobs.submission import check_answers, submit

_TWICE = "Traceback (most recent call last):\n  File ...\nValueError: Job with submission_id one~9 already exists.\n"


class Dashboard(ThreadingHTTPServer):
    """The server.

    Attributes:
        jobs: the status of each job by its name; those that are submitted pend.
        refusal: what it says instead of taking a job.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answers)
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.jobs, self.refusal = dict[str, str](), ""


class _Answers(BaseHTTPRequestHandler):
    server: Dashboard

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        job = {"type": "SUBMISSION", "entrypoint": "asyncrl"}
        others = [{**job, "type": "DRIVER", "status": "RUNNING"}]
        jobs = [{**job, "submission_id": name, "status": status} for name, status in self.server.jobs.items()]
        self._say({"/api/jobs/": [*others, *jobs], "/api/version": {"ray_version": "2.60.0"}}.get(self.path, {}))

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.server.refusal:
            self._say(self.server.refusal, 500)
            return
        self.server.jobs[asked["submission_id"]] = "PENDING"
        self._say({"job_id": asked["submission_id"], "submission_id": asked["submission_id"]})

    def _say(self, answer: object, status: int = 200) -> None:
        content = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def dashboard() -> Iterator[Dashboard]:
    with Dashboard() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_a_run_is_submitted_again_once_its_job_has_ended_and_not_before(dashboard: Dashboard, tmp_path: Path):
    def again() -> str:
        return submit(dashboard.url, "one", ["launch", "quickstart"], folder_to_bring(tmp_path))

    assert again() == "one"
    for end in ("FAILED", "STOPPED", "SUCCEEDED"):
        (newest, *_) = reversed(dashboard.jobs)
        for status in ("PENDING", "RUNNING"):
            dashboard.jobs[newest] = status
            with pytest.raises(RecipeError, match=rf"has a job '{newest}' that goes on; let it .*: ray job stop .* {newest}$"):
                again()
        dashboard.jobs[newest] = end
        again()
    assert list(dashboard.jobs) == ["one", "one~2", "one~3", "one~4"]


def test_a_job_that_goes_on_is_seen_though_one_before_it_was_deleted(dashboard: Dashboard, tmp_path: Path):
    dashboard.jobs = {"one": "FAILED", "one~3": "RUNNING", "one-more": "RUNNING"}
    with pytest.raises(RecipeError, match="has a job 'one~3' that goes on"):
        submit(dashboard.url, "one", ["launch", "quickstart"], folder_to_bring(tmp_path))
    dashboard.jobs["one~3"] = "STOPPED"
    assert submit(dashboard.url, "one", ["launch", "quickstart"], folder_to_bring(tmp_path)) == "one~2"


def test_a_refusal_of_the_cluster_is_told_without_its_traceback(dashboard: Dashboard, tmp_path: Path):
    dashboard.refusal = _TWICE
    with pytest.raises(RecipeError, match="does not take the job: ValueError: Job with submission_id one~9 already exists;"):
        submit(dashboard.url, "one", ["launch", "quickstart"], folder_to_bring(tmp_path))


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "'' is no address of a dashboard"),
        ("HEAD:8265", "'HEAD:8265' is no address of a dashboard"),
        ("ray://HEAD:10001", "is no address of a dashboard"),
        ("http://[::1", "is no address of a dashboard"),
        ("http://HEAD:port", "is no address of a dashboard"),
        ("http://HEAD or tail:8265", "is no address of a dashboard"),
        ("http://" + 70 * "a", "is no address of a dashboard"),
        ("http://127.0.0.1:9/größe", "is no address of a dashboard"),
        ("http://me:word@127.0.0.1:9", "does not answer: Connection refused"),
        ("http://127.0.0.1:9", "the cluster at http://127.0.0.1:9 does not answer: Connection refused"),
    ],
)
def test_an_address_that_is_no_dashboards_is_refused_at_once(tmp_path: Path, url: str, said: str):
    with pytest.raises(RecipeError) as refused:
        submit(url, "one", ["launch", "quickstart"], folder_to_bring(tmp_path))
    assert said in str(refused.value)
    assert "name its dashboard, as http://HEAD:8265" in str(refused.value)


@pytest.mark.parametrize(("answer", "said"), [(b"", "does not answer: timed out"), (b"\0ray\r\n", "does not speak HTTP")])
def test_what_listens_and_is_no_dashboard_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes, said: str
):
    monkeypatch.setattr(submission, "ANSWER_S", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer_once() -> None:
            with server.accept()[0] as asked:
                asked.recv(1 << 16)
                asked.sendall(answer)
                asked.recv(1)

        threading.Thread(target=answer_once, daemon=True).start()
        with pytest.raises(RecipeError, match=said):
            submit(f"http://127.0.0.1:{server.getsockname()[1]}", "one", ["launch"], folder_to_bring(tmp_path))


def test_what_answers_with_a_certificate_is_left_to_rays_client_to_believe(monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object, **__: object) -> None:
        raise URLError(SSLCertVerificationError("self-signed certificate"))

    monkeypatch.setattr("urllib.request.urlopen", refuse)
    check_answers("https://HEAD:8265")


@pytest.mark.parametrize(
    ("proxies", "is_asked"),
    [
        ({}, True),
        ({"ALL_PROXY": "socks5://127.0.0.1:9"}, False),
        ({"all_proxy": "http://127.0.0.1:9"}, False),
        ({"http_proxy": "socks5h://127.0.0.1:9"}, False),
        ({"http_proxy": "http://127.0.0.1:9"}, True),
        ({"ALL_PROXY": "socks5://127.0.0.1:9", "NO_PROXY": "127.0.0.1"}, True),
        ({"https_proxy": "socks5://127.0.0.1:9"}, True),
    ],
)
def test_what_only_rays_client_can_reach_is_left_to_it(monkeypatch: pytest.MonkeyPatch, proxies: dict[str, str], is_asked: bool):
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in proxies.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(RecipeError, match="does not answer") if is_asked else nullcontext():
        check_answers("http://me:word@127.0.0.1:9")


def test_a_proxy_that_rays_client_cannot_use_says_what_it_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    if find_spec("socks") is not None:
        pytest.skip("Ray's client can use it here")
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with pytest.raises(RecipeError, match=r'SOCKS proxy .*; pip install "requests\[socks\]"$'):
        submit("http://127.0.0.1:9", "one", ["launch"], folder_to_bring(tmp_path))
