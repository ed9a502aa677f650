"""A collector of OpenTelemetry for tests: a real server that takes spans by OTLP over HTTP, and can be down."""

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from asyncrl.run.tracking import opentelemetry_spans


class Collector:
    """What came, and whether more is taken.

    Attributes:
        resource: what was said of the sender, by name.
        spans: what came, in order.
        refuses: whether it answers that a request is bad, after which nobody tries again.
        asked: how many requests there were.
    """

    def __init__(self) -> None:
        self.resource: dict[str, str] = {}
        self.spans: list[Span] = []
        self.refuses, self.asked = False, 0

    def take(self, body: bytes) -> None:
        """Keep what is in a request."""
        for of_resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            self.resource = {each.key: each.value.string_value for each in of_resource.resource.attributes}
            self.spans += [span for of_scope in of_resource.scope_spans for span in of_scope.spans]

    def seen(self) -> dict[str, float]:
        """How long each span lasted, in seconds, by its name."""
        return {span.name: (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9 for span in self.spans}


def use(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have spans sent to a collector, which may take as long as it likes: the machine may be busy."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "100")
    monkeypatch.setattr(opentelemetry_spans, "SHARE", 1.0)


@contextmanager
def collector() -> Iterator[tuple[Collector, str]]:
    """Serve a collector; yields it and its address."""
    made = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            made.asked += 1
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if not made.refuses and self.path == "/v1/traces":
                made.take(gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body)
            self.send_response(400 if made.refuses else 200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *told: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.01,))
        serving.start()
        try:
            yield made, f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            serving.join()
