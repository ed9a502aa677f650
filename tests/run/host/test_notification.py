"""Who is told when a run ends, and what becomes of it where that goes wrong."""

import http.server
import json
import threading
from collections.abc import Iterator

import msgspec
import pytest

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.notify import NotifyConfig
from asyncrl.run.host.notification import Ending, check_notification, notify

ENDING = Ending(
    text="quick failed", name="quick", run="/r", status="failed", reason="no coffee", steps=3, reward=0.5, evaluation=None
)
SHOW = (
    'import os, sys; open(sys.argv[1], "w").write(sys.stdin.read() + os.environ["ASYNCRL_STATUS"] + os.environ["ASYNCRL_REASON"])'
)


@pytest.fixture
def server() -> Iterator[tuple[str, list[object]]]:
    """A server that keeps what is posted; posts to ``/broken`` it refuses."""
    posted: list[object] = []

    class Keep(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            if self.path.startswith("/for-"):
                self.send_response(200 if self.headers["Authorization"] == f"Bearer {self.path[5:]}" else 401)
            elif self.path == "/moved":
                self.send_response(302)
                self.send_header("Location", "/elsewhere")
            else:
                self.send_response(500 if self.path == "/broken" else 200)
            self.end_headers()

        def do_GET(self):
            posted.append(self.headers["Authorization"])
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    serving = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Keep)
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{serving.server_port}", posted
    serving.shutdown()


def test_a_command_and_a_url_are_told(server, tmp_path, monkeypatch):
    url, posted = server
    monkeypatch.setenv("OUR_HOOK", f"{url}/hook")
    config = NotifyConfig(command=("python3", "-c", SHOW, str(tmp_path / "told")), url="$OUR_HOOK")
    check_notification(config, {"OUR_HOOK": url})
    assert notify(config, ENDING, failed=True) == []
    told = (tmp_path / "told").read_text()
    assert told.endswith("failedno coffee")
    assert posted == [json.loads(told.removesuffix("failedno coffee"))]
    assert posted[0] == {
        **{"text": "quick failed", "name": "quick", "run": "/r", "status": "failed", "reason": "no coffee", "steps": 3},
        **{"reward": 0.5, "evaluation": None},
    }


def test_a_reason_with_any_characters_reaches_the_command(tmp_path):
    config = NotifyConfig(command=("python3", "-c", SHOW, str(tmp_path / "told")))
    assert notify(config, msgspec.structs.replace(ENDING, reason="a\0b \ud800"), failed=True) == []
    assert (tmp_path / "told").read_text().endswith("faileda␀b \\ud800")


def test_a_server_that_wants_a_key_gets_it_and_one_that_redirects_is_not_followed(server, monkeypatch):
    url, posted = server
    monkeypatch.setenv("HOOK_KEY", "sesame-7")
    assert notify(NotifyConfig(url=f"{url}/for-sesame-7"), ENDING, failed=True) == ["notify.url was not reached: Unauthorized"]
    assert notify(NotifyConfig(url=f"{url}/for-sesame-7", token_variable="HOOK_KEY"), ENDING, failed=True) == []
    (said,) = notify(NotifyConfig(url=f"{url}/moved", token_variable="HOOK_KEY"), ENDING, failed=True)
    assert said == "notify.url was not reached: it redirects (status 302); give the address that it redirects to"
    assert [type(each) for each in posted] == [dict] * 3  # nothing came by GET


def test_only_failures_are_told_where_that_is_asked_for(server):
    url, posted = server
    config = NotifyConfig(url=url, when="failure")
    assert (notify(config, ENDING, failed=False), posted) == ([], [])
    assert (notify(config, ENDING, failed=True), len(posted)) == ([], 1)


def test_what_goes_wrong_is_a_sentence_without_the_secret_address(server, monkeypatch):
    monkeypatch.setattr("asyncrl.run.host.notification.NOTIFY_S", 0.5)
    for config, problem in [
        (NotifyConfig(command=("python3", "-c", "import sys; sys.exit('no mail')")), "ended with code 1: 'no mail'"),
        (NotifyConfig(command=("sleep", "60")), "'sleep' took more than 0.5 s and was ended"),
        (NotifyConfig(command=("/no/such",)), "could not be started: No such file or directory"),
        (NotifyConfig(url=f"{server[0]}/broken"), "notify.url was not reached: Internal Server Error"),
        (NotifyConfig(url="http://me:sesame-7@127.0.0.1"), "notify.url was not reached: InvalidURL"),
        (NotifyConfig(url="http://127.0.0.1/sesame-7 x"), "notify.url was not reached: InvalidURL"),
        (NotifyConfig(url="$GONE"), "GONE is not set any more"),
        (NotifyConfig(url=server[0], token_variable="GONE"), "notify.token_variable: the environment variable GONE is not set"),
    ]:
        (said,) = notify(config, ENDING, failed=True)
        assert problem in said
        assert server[0] not in said
        assert "sesame" not in said
    assert len(server[1]) == 1  # that of /broken


@pytest.mark.parametrize(
    ("config", "problem"),
    [
        (NotifyConfig(command=("no-such-command",)), "notify.command: there is no command 'no-such-command'"),
        (NotifyConfig(url="$HOOK"), "notify.url: the environment variable HOOK is not set; export it where you launch"),
        (NotifyConfig(url="ftp://x"), "notify.url: 'ftp://x' is no address"),
        (NotifyConfig(url="http://x", token_variable="KEY"), "notify.token_variable: the environment variable KEY is not set"),
        (NotifyConfig(url="http://x", token_variable="SPLIT"), "notify.token_variable: the value of SPLIT has a space, a line's"),
        (NotifyConfig(token_variable="KEY"), "notify.token_variable: a token is sent to a url only"),
    ],
)
def test_what_could_not_be_told_is_refused_before_the_run(config, problem):
    with pytest.raises(RecipeError, match=problem):
        check_notification(config, {"SPLIT": "key\r"})
