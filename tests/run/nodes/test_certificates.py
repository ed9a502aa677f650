"""The keys of a run's connections: made, read, or refused with the remedy."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.network import FileTlsConfig, NetworkConfig, NoTlsConfig, RunTlsConfig
from asyncrl.run.nodes.certificates import check_network, keys_of, make_keys


def files(folder: Path, **contents: bytes) -> NetworkConfig:
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return NetworkConfig(FileTlsConfig(*(str(folder / name) for name in ("certificate", "key", "authority"))))


def test_no_two_runs_have_the_same_keys():
    assert keys_of(NetworkConfig(NoTlsConfig())) is None
    assert keys_of(NetworkConfig(RunTlsConfig())) != keys_of(NetworkConfig(RunTlsConfig()))


def test_keys_of_the_user_s_own_are_read_and_checked(tmp_path):
    own, other = make_keys(), make_keys()
    assert keys_of(files(tmp_path, certificate=own.certificate, key=own.key, authority=own.authority)) == own
    with pytest.raises(RecipeError, match=r"network.tls: the files are no certificate, key and authority that belong together"):
        keys_of(files(tmp_path, key=other.key))
    with pytest.raises(RecipeError, match="belong together"):
        keys_of(files(tmp_path, key=b"", authority=b"no PEM"))
    (tmp_path / "key").unlink()
    with pytest.raises(RecipeError, match=r"network.tls.key: cannot read .*: No such file.*name a PEM file"):
        keys_of(files(tmp_path))


AUTHORITY, OTHER_AUTHORITY, KEY = (ec.generate_private_key(ec.SECP256R1()) for _ in range(3))


def certificate(
    name: str = "run", signed_by: ec.EllipticCurvePrivateKey = AUTHORITY, days: tuple[int, int] = (-1, 1), usage: tuple = ()
) -> bytes:
    """A certificate in PEM, of ``KEY`` or of the authority that signs it; ``days`` are those of its validity, from now."""
    named = [x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, each)]) for each in (name, "authority")]
    now, is_authority = datetime.now(UTC), name == "authority"
    made = (
        x509.CertificateBuilder(issuer_name=named[1], subject_name=named[0], serial_number=x509.random_serial_number())
        .public_key((signed_by if is_authority else KEY).public_key())
        .not_valid_before(now + timedelta(days[0]))
        .not_valid_after(now + timedelta(days[1]))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
    )
    if usage:
        made = made.add_extension(x509.ExtendedKeyUsage(usage), critical=False)
    return made.sign(signed_by, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def private_key(cipher: serialization.KeySerializationEncryption) -> bytes:
    return KEY.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, cipher)


PLAIN = serialization.NoEncryption()


def test_a_certificate_that_both_ends_accept_is_used(tmp_path):
    both = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)
    keys_of(files(tmp_path, certificate=certificate(usage=both), key=private_key(PLAIN), authority=certificate(name="authority")))


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"certificate": certificate(days=(-9, -1))}, "certificate has expired"),
        ({"certificate": certificate(days=(1, 9))}, "not yet valid"),
        ({"certificate": certificate(signed_by=OTHER_AUTHORITY)}, "signature failure"),
        ({"certificate": certificate(usage=(ExtendedKeyUsageOID.SERVER_AUTH,))}, "unsuitable certificate purpose"),
        ({"certificate": certificate(usage=(ExtendedKeyUsageOID.CLIENT_AUTH,))}, "unsuitable certificate purpose"),
        ({"authority": certificate(name="authority", days=(-9, -1))}, "certificate has expired"),
        ({"authority": certificate()}, "unable to get local issuer certificate"),
        ({"key": private_key(serialization.BestAvailableEncryption(b"secret"))}, r"PEM lib.* without a passphrase"),
    ],
)
def test_a_certificate_that_an_end_would_refuse_is_refused_before_anything_starts(tmp_path, changed, why):
    pems = {"certificate": certificate(), "key": private_key(PLAIN), "authority": certificate(name="authority")}
    with pytest.raises(RecipeError, match=rf"network\.tls: .*{why}"):
        check_network(files(tmp_path, **pems | changed), {})


def test_keys_do_not_pass_through_a_cluster_that_is_not_encrypted():
    cluster = {"RAY_ADDRESS": "10.0.0.1:6379"}
    check_network(NetworkConfig(NoTlsConfig()), cluster)
    check_network(NetworkConfig(RunTlsConfig()), {})
    check_network(NetworkConfig(RunTlsConfig()), {**cluster, "RAY_USE_TLS": "1"})
    with pytest.raises(RecipeError, match=r"would pass unencrypted .* RAY_USE_TLS=1"):
        check_network(NetworkConfig(RunTlsConfig()), cluster)
