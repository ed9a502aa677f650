"""The network interfaces of this host, and which of them leads to another one."""

import socket

INTERFACES = "GLOO_SOCKET_IFNAME"
"""The environment variable that names the network interfaces of gloo, with commas between them."""

LOOPBACK, _LOOPBACK_INTERFACE = "127.0.0.1", "lo"


def address_towards(host: str, port: int) -> str:
    """The address of this host that connections to ``host`` come from. Nothing is sent to find it."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def interface_of(address: str) -> str | None:
    """The name of the interface that has ``address``; None if no interface has it, as in some sandboxes.

    Without psutil, only the loopback is known; on several hosts, gloo then chooses by itself.
    """
    try:
        import psutil
    except ImportError:
        names = [name for _, name in socket.if_nameindex()]
        return _LOOPBACK_INTERFACE if address == LOOPBACK and _LOOPBACK_INTERFACE in names else None
    return next((name for name, has in psutil.net_if_addrs().items() if any(one.address == address for one in has)), None)
