"""A Hugging Face hub on this machine, as far as its real client needs one to look, make, load up and load down."""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from huggingface_hub import ModelCard

WRITES, READS = "hf_mayWriteEverythingOfMe0000", "hf_mayOnlyRead0000000000000000"
"""Tokens: one that may write what belongs to ``me``, and one that may write nothing."""
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class LocalHub:
    """What the hub holds, and what it was asked.

    Attributes:
        url: what the client's ``HF_ENDPOINT`` is set to.
        repositories: the files of each by name; ``private`` are those that strangers may not see.
        card_errors: what the hub says against every card.
        large: how the names of files end that the hub wants apart from the commit.
        fails_with: the status of every answer, if the hub is broken.
        silent: set for a hub that accepts connections and does not answer before it is closed.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, dict[str, bytes]] = {}
        self.private: set[str] = set()
        self.asked: list[tuple[str, str]] = []
        self.messages: list[str] = []
        self.card_errors: list[str] = []
        self.large = "safetensors"
        self.fails_with = 0
        self.silent = False
        self.closed = threading.Event()
        self.stored: dict[str, bytes] = {}
        self.url = ""

    def create(self, body: dict[str, Any]) -> tuple[int, Any]:
        name = f"{body['organization']}/{body['name']}"
        if body["organization"] != "me":
            return 403, {"error": "You don't have the rights to create a model under this namespace"}
        if name in self.repositories:
            return 409, {"error": "You already created this model repo"}
        self.repositories[name] = {".gitattributes": b"*.safetensors filter=lfs"}
        if body.get("visibility") == "private" or body.get("private"):
            self.private.add(name)
        return 200, {"url": f"{self.url}/{name}", "name": name}

    def info(self, name: str) -> tuple[int, Any]:
        if name not in self.repositories:
            return 404, {"error": "Repository not found"}
        files = self.repositories[name]
        tags = ModelCard(files["README.md"].decode()).data.tags if "README.md" in files else []
        siblings = [{"rfilename": each} for each in files]
        return 200, {"id": name, "sha": COMMIT, "private": name in self.private, "tags": tags or [], "siblings": siblings}

    def tree(self, name: str) -> tuple[int, Any]:
        files = self.repositories[name]
        return 200, [{"type": "file", "path": each, "size": len(files[each]), "oid": "0"} for each in files]

    def modes(self, body: dict[str, Any]) -> tuple[int, Any]:
        modes = [
            {"path": each["path"], "uploadMode": "lfs" if each["path"].endswith(self.large) else "regular"}
            for each in body["files"]
        ]
        return 200, {"files": [each | {"shouldIgnore": False, "oid": None} for each in modes]}

    def batch(self, body: dict[str, Any]) -> tuple[int, Any]:
        objects = [
            {**each, "actions": {"upload": {"href": f"{self.url}/stored/{each['oid']}", "header": {}}}}
            for each in body["objects"]
        ]
        return 200, {"transfer": "basic", "objects": objects}

    def commit(self, name: str, lines: list[dict[str, Any]]) -> tuple[int, Any]:
        files = self.repositories[name]
        for line in lines:
            value = line["value"]
            match line["key"]:
                case "header":
                    self.messages.append(value["summary"])
                case "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                case "lfsFile":
                    files[value["path"]] = self.stored[value["oid"]]
                case "deletedFile":
                    del files[value["path"]]
        return 200, {"commitUrl": f"{self.url}/{name}/commit/{COMMIT}", "commitOid": COMMIT, "success": True}


def _handler(hub: LocalHub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            path = self.path.partition("?")[0]
            hub.asked.append((self.command, path))
            if hub.silent:
                hub.closed.wait(60)
            status, answer = self._routed(path, body)
            content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            if isinstance(answer, bytes):
                self.send_header("ETag", f'"{hashlib.sha1(content).hexdigest()}"')
                self.send_header("X-Repo-Commit", COMMIT)
            elif status >= 400:
                self.send_header("X-Error-Message", answer["error"])
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(content)

        def _routed(self, path: str, body: bytes) -> tuple[int, Any]:
            if hub.fails_with:
                return hub.fails_with, {"error": "out of order"}
            if path.startswith("/stored/"):
                hub.stored[path.rpartition("/")[2]] = body
                return 200, {}
            token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
            if token not in (WRITES, READS):
                return 401, {"error": "Invalid credentials in Authorization header"}
            if path == "/api/validate-yaml":
                errors = [{"message": each} for each in hub.card_errors]
                return (400 if errors else 200), {"errors": errors, "warnings": [], "error": "bad card"}
            if found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
                files = hub.repositories[found[1]]
                return (200, files[found[2]]) if found[2] in files else (404, {"error": "Entry not found"})
            if path.startswith("/api/models/") and self.command == "GET":
                name, tree, _ = path.removeprefix("/api/models/").partition("/tree/")
                return hub.tree(name) if tree else hub.info(name)
            if token == READS:
                return 403, {"error": "The token may only read"}
            if path == "/api/repos/create":
                return hub.create(json.loads(body))
            if path.endswith("/preupload/main"):
                return hub.modes(json.loads(body))
            if path.endswith("/objects/batch"):
                return hub.batch(json.loads(body))
            if path.endswith("/commit/main"):
                name = path.removeprefix("/api/models/").removesuffix("/commit/main")
                return hub.commit(name, [json.loads(line) for line in body.splitlines()])
            raise AssertionError(f"the client asks for {self.command} {path}")

        do_GET = do_HEAD = do_POST = do_PUT = _answer

        def log_message(self, *_: object) -> None:
            pass

    return Handler


@contextmanager
def local_hub() -> Iterator[LocalHub]:
    """Serve an empty hub."""
    hub = LocalHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.closed.set()
        server.shutdown()
        server.server_close()
        thread.join(10)
