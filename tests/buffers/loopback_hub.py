"""A server on loopback that answers as the Hugging Face hub does."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import huggingface_hub.constants
import pytest


class Hub(ThreadingHTTPServer):
    """Answers what the hub's client asks: the commit and the files of a data set or a model, and each file.

    Attributes:
        files: content of the files of each, by commit and name.
        heads: the commit of each branch of each.
        fetched: what was asked for.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.files: dict[str, dict[str, dict[str, bytes]]] = {}
        self.heads: dict[str, dict[str, str]] = {}
        self.fetched: list[str] = []

    def publish(self, name: str, commit: str, files: dict[str, bytes], branch: str = "main") -> None:
        self.files.setdefault(name, {})[commit] = files
        self.heads.setdefault(name, {})[branch] = commit


class _Handler(BaseHTTPRequestHandler):
    server: Hub

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = unquote(self.path.partition("?")[0])
        hub = self.server
        hub.fetched.append(path)
        parts = path.strip("/").split("/")
        if parts[0] == "api" and parts[1] in ("datasets", "models"):
            describe = self._listed if parts[4:5] == ["tree"] else self._described
            describe("/".join(parts[2:4]), "/".join(parts[5:]) if parts[4:5] in (["revision"], ["tree"]) else "main")
        elif "resolve" in (resolved := parts[parts[0] == "datasets" :])[2:3]:
            self._file("/".join(resolved[:2]), resolved[3], "/".join(resolved[4:]), body=body)
        else:
            self._refuse("EntryNotFound")

    def _commit(self, name: str, revision: str) -> str | None:
        if name not in self.server.files:
            self._refuse("RepoNotFound")
            return None
        commit = self.server.heads[name].get(revision, revision)
        if commit not in self.server.files[name]:
            self._refuse("RevisionNotFound")
            return None
        return commit

    def _listed(self, name: str, revision: str) -> None:
        if (commit := self._commit(name, revision)) is not None:
            files = self.server.files[name][commit].items()
            listed = [{"type": "file", "path": file, "size": len(content), "oid": file} for file, content in files]
            self._send(json.dumps(listed).encode(), {"Content-Type": "application/json"}, body=True)

    def _described(self, name: str, revision: str) -> None:
        if (commit := self._commit(name, revision)) is not None:
            siblings = [{"rfilename": file} for file in self.server.files[name][commit]]
            answer = {
                "id": name,
                "sha": commit,
                "siblings": siblings,
                "private": False,
                "gated": False,
                "tags": [],
                "downloads": 0,
            }
            self._send(json.dumps(answer).encode(), {"Content-Type": "application/json"}, body=True)

    def _file(self, name: str, revision: str, file: str, *, body: bool) -> None:
        commit = self._commit(name, revision)
        if commit is None:
            return
        content = self.server.files[name][commit].get(file)
        if content is None:
            self._refuse("EntryNotFound")
            return
        self._send(content, {"ETag": f'"{hash((commit, file)):x}"', "X-Repo-Commit": commit}, body=body)

    def _send(self, content: bytes, headers: dict[str, str], *, body: bool) -> None:
        self.send_response(200)
        for key, value in (headers | {"Content-Length": str(len(content))}).items():
            self.send_header(key, value)
        self.end_headers()
        if body:
            self.wfile.write(content)

    def _refuse(self, code: str) -> None:
        self.send_response(404)
        self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def loopback_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """Context manager that has the hub's client ask a hub on loopback, with an empty cache."""
    with Hub() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", endpoint)
        monkeypatch.setattr(
            huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.chdir(tmp_path)
        yield server
        server.shutdown()
