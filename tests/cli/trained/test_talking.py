"""A person talks to a model in a terminal, with real tools in place; the model's server says what the test wrote."""

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from terminal import terminal

from asyncrl.cli.main import main
from asyncrl.core.errors import ComponentFailed
from asyncrl.run.serving.conversation import Conversation, Cut, Said
from asyncrl.run.serving.server import Address

CALL = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "calculator", "arguments": ""}}
TURNS = [
    [{"content": "Let me "}, {"content": "see."}, {"tool_calls": [CALL]}]
    + [{"tool_calls": [{"index": 0, "function": {"arguments": part}}]} for part in ('{"expres', 'sion": "6*7"}')],
    [{"reasoning_content": "hm"}, {"content": "It is 42."}],
    [{"content": "Hello."}],
]
"""What the model says, turn by turn, in the pieces in which it arrives."""


def asks(lines: list[str]) -> bool:
    """Whether the last line is a prompt. Before it is there, the terminal itself takes Ctrl-D."""
    return [line for line in lines if line][-1:] == [">"]


@pytest.fixture
def server() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """A server of OpenAI's protocol, and what it was asked."""
    asked: list[dict[str, Any]] = []

    class Model(BaseHTTPRequestHandler):
        def do_POST(self):
            asked.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200 if self.headers["Authorization"] == "Bearer secret" else 401)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            self.wfile.write(b": a comment, as some servers send while they are busy\n\n")
            for delta in TURNS[len(asked) - 1]:
                self.wfile.write(f"data: {json.dumps({'choices': [{'index': 0, 'delta': delta}]})}\n\n".encode())
            end = {"index": 0, "delta": {}, "finish_reason": "stop"}
            self.wfile.write(f"data: {json.dumps({'choices': [end]})}\n\n".encode())
            self.wfile.write(b"data: [DONE]\n\n")

        def log_message(self, *_):
            pass

    serving = ThreadingHTTPServer(("127.0.0.1", 0), Model)
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{serving.server_port}/v1", asked
    serving.shutdown()


def test_a_version_of_a_servers_model_is_refused(capsys):
    assert main(["chat", "mine", "--url", "http://127.0.0.1:1", "--version", "3"]) == 2
    assert "which need not be version 3; leave out --version, or --url" in " ".join(capsys.readouterr().err.split())


def test_a_person_sets_a_task_and_sees_the_model_use_the_tools(server, tmp_path, monkeypatch):
    url, asked = server
    monkeypatch.chdir(tmp_path)
    command = ["-m", "asyncrl.cli.main", "chat", "mine", "--url", url, "--environment", "quickstart"]
    with terminal(command, columns=100, environment={"VLLM_API_KEY": "secret"}) as screen:
        screen.wait_for(lambda lines: lines[0] == ">")
        screen.press("6*7\n")
        screen.wait_for("hmIt is 42.")
        lines = [line for line in screen.everything if line]
        assert lines[:5] == ["> 6*7", "Let me see.", '  calls calculator({"expression": "6*7"})', "  tool: 42", "hmIt is 42."]
        screen.press("/new\n")
        screen.wait_for("begun anew")
        screen.press("hi\n")
        screen.wait_for("Hello.")
        screen.wait_for(asks)
        screen.press("\x04")
        assert screen.wait() == 0
    assert [tool["function"]["name"] for tool in asked[0]["tools"]] == ["calculator"]
    assert [message["role"] for message in asked[1]["messages"]] == ["user", "assistant", "tool"]
    said, told = asked[1]["messages"][1:]
    assert said["content"] == "Let me see."
    assert said["tool_calls"][0]["function"] == {"name": "calculator", "arguments": '{"expression": "6*7"}'}
    assert (told["content"], told["tool_call_id"]) == ("42", "call_1")
    assert [message["content"] for message in asked[2]["messages"]][-1] == "hi"
    assert asked[2]["temperature"] == 0.7


def test_a_server_that_refuses_is_quoted_and_the_conversation_goes_on(server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with terminal(["-m", "asyncrl.cli.main", "chat", "mine", "--url", server[0]], columns=100) as screen:
        screen.wait_for(lambda lines: lines[0] == ">")
        screen.press("hi\n")
        screen.wait_for("the server refuses the request")
        screen.wait_for(asks)
        screen.press("\x04")
        assert screen.wait() == 0


def piece(**choice):
    return f"data: {json.dumps({'choices': [{'index': 0, 'delta': {}, **choice}]})}\n\n".encode()


@pytest.mark.parametrize(
    ("last", "said"),
    [
        (piece(finish_reason="length"), [Cut("cut off: it has reached its most tokens, or the model's context is full")]),
        (b"data: [DONE]\n\n", [Cut("cut off: the server ended its answer before the model had")]),
        (piece(finish_reason="stop"), []),
        (None, []),
    ],
)
async def test_an_answer_that_was_cut_off_says_so_and_one_that_stands_still_is_not_waited_for(last, said):
    heard, still = [], asyncio.Event()

    async def model(request):
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(piece(delta={"content": "So"}))
        if last is None:
            await still.wait()
        else:
            await answer.write(last)
        return answer

    application = web.Application()
    application.router.add_post("/v1/chat/completions", model)
    async with TestServer(application) as server, aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(sock_read=1)) as http:
        conversation = Conversation(http, Address(str(server.make_url("")), ""), "mine")
        with pytest.raises(ComponentFailed, match="the server does not answer") if last is None else nullcontext():
            async for each in conversation.say("hi"):
                heard.append(each)  # noqa: PERF401 - what was heard before it raises counts, too
        still.set()
    assert heard == [Said("So"), *said]


def test_ctrl_c_leaves_the_terminal_as_it_was(server, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with terminal(["-m", "asyncrl.cli.main", "chat", "mine", "--url", server[0]], columns=100) as screen:
        screen.wait_for(lambda lines: lines[0] == ">")
        screen.process.send_signal(signal.SIGINT)
        assert screen.wait() == 130


SERVE = """
import signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # which the tests may ignore, run by nohup, and then so would this
from asyncrl.run.host.signals import interrupting
from asyncrl.run.serving.server import started

class Model:
    def command(self, host, port, has_gpu):
        return [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]

    def variables(self, has_gpu):
        return {}

with interrupting(), started(Model(), "127.0.0.1", 1) as server:
    print(server.pid, flush=True)
    server.wait()
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_server_ends_with_whoever_serves_however_that_ended(number):
    with subprocess.Popen([sys.executable, "-c", SERVE], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as serving:
        try:
            pid = int(serving.stdout.readline())
            assert serving.stdout.readline() == "up\n"
            ended = os.pidfd_open(pid)
            serving.send_signal(number)
            assert select.select([ended], [], [], 60)[0], "the server goes on"
            os.close(ended)
        finally:
            serving.kill()
