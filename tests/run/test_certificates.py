"""The keys of a run's connections: made, read, or refused with the remedy."""

from pathlib import Path

import pytest

from asyncrl.core.errors import RecipeError
from asyncrl.core.recipe.network import FileTls, NetworkConfig, NoTls, RunTls
from asyncrl.run.certificates import check_network, keys_of, make_keys


def files(folder: Path, **contents: bytes) -> NetworkConfig:
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return NetworkConfig(FileTls(*(str(folder / name) for name in ("certificate", "key", "authority"))))


def test_no_two_runs_have_the_same_keys():
    assert keys_of(NetworkConfig(NoTls())) is None
    assert keys_of(NetworkConfig(RunTls())) != keys_of(NetworkConfig(RunTls()))


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


def test_keys_do_not_pass_through_a_cluster_that_is_not_encrypted():
    cluster = {"RAY_ADDRESS": "10.0.0.1:6379"}
    check_network(NetworkConfig(NoTls()), cluster)
    check_network(NetworkConfig(RunTls()), {})
    check_network(NetworkConfig(RunTls()), {**cluster, "RAY_USE_TLS": "1"})
    with pytest.raises(RecipeError, match=r"would pass unencrypted .* RAY_USE_TLS=1"):
        check_network(NetworkConfig(RunTls()), cluster)
