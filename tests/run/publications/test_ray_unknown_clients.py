"""What Ray gives of its object store to those who do not show its token, through which runs send weights from node to node."""

import os
import secrets
import subprocess
import sys

import pytest

pytest.importorskip("grpc")

METHODS = ("Push", "Pull")
_NODE = """
import sys, grpc, ray
ray.init(address="local", include_dashboard=False, num_cpus=1, object_store_memory=80 << 20, log_to_driver=False)
(node,) = ray.nodes()
channel = grpc.insecure_channel(f"{node['NodeManagerAddress']}:{node['ObjectManagerPort']}")
for method in sys.argv[2:]:
    for token in (None, "0" * 64, sys.argv[1]):
        shown = None if token is None else [("authorization", f"Bearer {token}")]
        try:
            channel.unary_unary(f"/ray.rpc.ObjectManagerService/{method}")(b"", metadata=shown, timeout=60)
            print(method, "answered")
        except grpc.RpcError as error:
            print(method, error.code().name)
ray.shutdown()
"""


def test_the_object_store_of_a_node_answers_only_those_who_show_rays_token() -> None:
    token = secrets.token_hex(32)
    variables = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    variables.pop("RAY_ADDRESS", None)
    command = [sys.executable, "-c", _NODE, token, *METHODS]
    said = subprocess.run(command, env=variables, stdout=subprocess.PIPE, text=True, timeout=200, check=True).stdout.splitlines()
    assert [line for line in said if line.split()[0] in METHODS] == [
        f"{method} {answer}" for method in METHODS for answer in ("UNAUTHENTICATED", "UNAUTHENTICATED", "answered")
    ]
