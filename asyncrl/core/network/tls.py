"""The keys with which a run's processes encrypt what they send each other (TLS).

What always holds: both ends of a connection show a certificate of the same authority, and refuse one of another; what they send
is encrypted by TLS 1.3. Names of hosts are not compared: who has a key of the authority belongs to the run, on whichever host.
"""

import contextlib
import ssl
import tempfile

import msgspec

from asyncrl.core.files.memory_files import memory_file_system


class TlsKeys(msgspec.Struct, frozen=True):
    """A certificate, its private key, and the authority that signed it; each in PEM."""

    certificate: bytes
    key: bytes
    authority: bytes

    def __repr__(self) -> str:
        """Show nothing of the key."""
        return "TlsKeys(...)"

    def server(self) -> ssl.SSLContext:
        """Return the context of an end that listens.

        Raises:
            ssl.SSLError: they are no certificate, key and authority that belong together.
        """
        return self._context(ssl.PROTOCOL_TLS_SERVER)

    def client(self) -> ssl.SSLContext:
        """Return the context of an end that connects; raises what :meth:`server` raises."""
        return self._context(ssl.PROTOCOL_TLS_CLIENT)

    def check(self) -> None:
        """Check that two ends with these keys accept each other now, by letting them shake hands in memory.

        Raises:
            ssl.SSLError: they do not; says why, such as that the certificate has expired or is another authority's.
        """
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        server = self.server().wrap_bio(to_server, to_client, server_side=True)
        client = self.client().wrap_bio(to_client, to_server)
        for end in (client, server, client, server):
            with contextlib.suppress(ssl.SSLWantReadError):  # the other end has to answer first
                end.do_handshake()

    def _context(self, protocol: int) -> ssl.SSLContext:
        context = ssl.SSLContext(protocol)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=self.authority.decode())
        # The ssl module reads a key from a file only. This one is in memory, for its owner alone, and gone at once.
        with tempfile.NamedTemporaryFile(dir=memory_file_system(), prefix="asyncrl-key-") as chain:
            chain.write(self.key + b"\n" + self.certificate)
            chain.flush()
            # Without a passphrase given, even an empty one, OpenSSL would ask for that of the key at the terminal, and wait.
            context.load_cert_chain(chain.name, password="")
        return context
