"""Makes or reads the keys with which a run's own connections are encrypted, as section ``network`` of its recipe says."""

import ssl
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from asyncrl.core.errors import RecipeError
from asyncrl.core.files.file_errors import refusing
from asyncrl.core.network.tls import TlsKeys
from asyncrl.core.recipe.network import FileTlsConfig, NetworkConfig, NoTlsConfig, RunTlsConfig

_VALID = timedelta(days=3650)
"""Longer than any run; its key is lost when it ends."""
_CLOCKS_DIFFER = timedelta(days=1)
"""Hosts whose clock is behind by less accept the certificate."""


def check_network(network: NetworkConfig, variables: Mapping[str, str]) -> None:
    """Check what can be known before a run starts.

    Args:
        variables: the environment variables of this process.

    Raises:
        RecipeError: connections are to be encrypted, but the cluster's own, through which the keys pass, are not; or a file of
            ``network.tls`` cannot be used.
    """
    if isinstance(network.tls, NoTlsConfig):
        return
    if variables.get("RAY_ADDRESS") and variables.get("RAY_USE_TLS") != "1":
        raise RecipeError(
            "network.tls",
            "the keys would pass unencrypted through the Ray cluster that RAY_ADDRESS names",
            "start Ray on all nodes, and this command, with RAY_USE_TLS=1 and its keys (docs/operations/network.md), or set "
            "network.tls.kind=none",
        )
    keys_of(network)


def keys_of(network: NetworkConfig) -> TlsKeys | None:
    """Return the keys of a run that starts now; None if its connections are not encrypted.

    Raises:
        RecipeError: a file cannot be read, the files do not belong together, or the certificate is not valid.
    """
    match network.tls:
        case RunTlsConfig():
            return make_keys()
        case FileTlsConfig() as files:
            return _read_keys(files)
        case _:
            return None


def make_keys() -> TlsKeys:
    """Make a key and a certificate for all processes of a run. The certificate is its own authority, and can sign no other."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "asyncrl run")])
    made = (
        x509.CertificateBuilder(issuer_name=name, subject_name=name, serial_number=x509.random_serial_number())
        .public_key(key.public_key())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + _VALID)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem, plain = serialization.Encoding.PEM, serialization.NoEncryption()
    certificate = made.public_bytes(pem)
    return TlsKeys(certificate, key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain), authority=certificate)


def _read_keys(files: FileTlsConfig) -> TlsKeys:
    read: dict[str, bytes] = {}
    for name in ("certificate", "key", "authority"):
        path = Path(getattr(files, name))
        with refusing(f"read {str(path)!r}", "name a PEM file that you may read", f"network.tls.{name}"):
            read[name] = path.read_bytes()
    keys = TlsKeys(**read)
    try:
        keys.check()
    except (ssl.SSLError, ValueError) as error:
        problem = f"the files are no certificate, key and authority that belong together: {error}"
        remedy = (
            "name a certificate in PEM that is valid now, for servers as well as for clients, its private key without a "
            "passphrase, and the certificate of its authority"
        )
        raise RecipeError("network.tls", problem, remedy) from error
    return keys
