"""An S3 server of moto's on this machine, which can be told to refuse, to be too busy, or to be slow."""

import os
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from moto.core.config import default_user_config
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from pyarrow.fs import S3FileSystem
from werkzeug.serving import WSGIRequestHandler, make_server

Answer = tuple[int, str]
"""A status and the code of an error, as S3 has them."""


class Quiet(WSGIRequestHandler):
    """Writes nothing to the terminal."""

    def log(self, type: str, message: str, *args: Any) -> None:
        """Say nothing."""


class ObjectStore:
    """The server. ``refuse`` is asked with the method and the path of each request, and returns what is to go wrong.

    Attributes:
        requests: the method and path of each request that was answered in order.
    """

    def __init__(self) -> None:
        self.refuse: Callable[[str, str], Answer | None] = lambda method, path: None
        self.requests: list[tuple[str, str]] = []
        default_user_config["core"]["service_whitelist"] = None
        self._moto = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, self._answer, threaded=True, request_handler=Quiet)
        self.endpoint = f"127.0.0.1:{self._server.port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        self.files = S3FileSystem(
            access_key="tester", secret_key="secret", endpoint_override=self.endpoint, scheme="http", allow_bucket_creation=True
        )

    def make_bucket(self) -> str:
        """Make a bucket of its own for a test, and return its address."""
        name = f"bucket-{secrets.token_hex(6)}"
        self.files.create_dir(name)
        return f"s3://{name}"

    def names(self, address: str) -> list[str]:
        """The names of all objects below an address, but for the marks of folders."""
        from pyarrow.fs import FileSelector, FileType

        root = address.removeprefix("s3://")
        found = self.files.get_file_info(FileSelector(root, recursive=True, allow_not_found=True))
        return sorted(each.path[len(root) + 1 :] for each in found if each.type is FileType.File)

    def content(self, address: str) -> bytes:
        """The content of an object."""
        with self.files.open_input_stream(address.removeprefix("s3://")) as found:
            return bytes(found.read())

    def close(self) -> None:
        """End the server."""
        self._server.shutdown()
        self._server.server_close()

    def _answer(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        refused = self.refuse(method, path)
        if refused is None:
            self.requests.append((method, path))
            answered: Iterable[bytes] = self._moto(environ, start)
            return answered
        status, code = refused
        environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        start(f"{status} {code}", [("Content-Type", "application/xml")])
        return [f"<Error><Code>{code}</Code><Message>as the test wants it</Message></Error>".encode()]


@contextmanager
def served() -> Iterator[ObjectStore]:
    """Context manager with a server that the environment of this process names, as one that is not Amazon's."""
    store = ObjectStore()
    named = {
        "AWS_ENDPOINT_URL": f"http://{store.endpoint}",
        "AWS_ACCESS_KEY_ID": "tester",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    before = {name: os.environ.get(name) for name in named}
    os.environ.update(named)
    try:
        yield store
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})
        store.close()
