"""The nodes of an engine whose workers are on several: which of them a process is on, and where they meet.

vLLM neither encrypts what nodes exchange nor checks who connects.
"""

import msgspec

from asyncrl.core.network.interfaces import INTERFACES, interface_of


class EngineNode(msgspec.Struct, frozen=True):
    """Which node of an engine a process is on. Each has as many of its workers as the others.

    Attributes:
        number: counted from 0, which is where the engine's own process is.
        count: how many nodes the engine has.
        host, port: where the workers of all nodes meet, an address of node 0; not used if there is one node.
    """

    number: int = 0
    count: int = 1
    host: str = ""
    port: int = 0


def variables_towards_other_nodes(address: str) -> dict[str, str]:
    """Return the environment variables of processes of an engine that must be reached at ``address`` from its other nodes."""
    interface = interface_of(address)
    return {"VLLM_HOST_IP": address} | ({} if interface is None else {INTERFACES: interface})
