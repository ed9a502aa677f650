"""Addresses of object stores, such as ``s3://bucket/runs``, and the file systems that reach them.

S3, Google Cloud Storage and Azure are reached by pyarrow's own clients, everything else by fsspec. Credentials come from the
environment, never from an address, which is written into recipes and logs.
"""

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from asyncrl.core.storage.errors import StorageError, bucket, family, translated

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://")
CONNECT_S, ANSWER_S = 10.0, 30.0
"""How long a store may take to accept a connection, and to send or take a byte."""
ATTEMPTS = 4
"""How often a client sends a request that a store is too busy for, or whose connection breaks."""
_OPTIONS = {
    "s3": ("endpoint_override", "region", "scheme"),
    "gs": ("endpoint_override", "scheme"),
    "az": ("blob_storage_authority", "blob_storage_scheme"),
}
_LOCAL_RUNS = "runs"


def is_address(text: str) -> bool:
    """Whether ``text`` is the address of an object store rather than a path on this machine."""
    return _SCHEME.match(text) is not None


def local_run_dir(run_dir: str) -> Path:
    """The folder of this machine in which run folders are made: ``runs``, where ``run_dir`` is an address."""
    return Path(_LOCAL_RUNS if is_address(run_dir) else run_dir)


def joined(address: str, name: str) -> str:
    """The address of ``name`` below ``address``, whose options stay at the end."""
    start, question, options = address.partition("?")
    return f"{start.rstrip('/')}/{name}{question}{options}"


def last_name(address: str) -> str:
    """The last part of an address."""
    return address.partition("?")[0].rstrip("/").rpartition("/")[2]


def without_name(address: str) -> str:
    """The address of what is above: :func:`joined` with :func:`last_name` gives ``address`` again."""
    start, question, options = address.partition("?")
    return f"{start.rstrip('/').rpartition('/')[0]}{question}{options}"


def file_system(address: str) -> tuple[Any, str]:
    """Return pyarrow's file system for an address, and the path in it.

    Raises:
        StorageError: the address is malformed, of no known kind, or its package is missing.
    """
    parts, scheme = urlsplit(address, allow_fragments=False), family(address)
    if parts.password or (parts.username and scheme == "s3"):
        remedy = "take them out of the address, and set them in the environment"
        raise StorageError(
            f"{scheme}://...", "there are credentials in the address, which is written into recipes and logs", remedy
        )
    if not bucket(address) and scheme != "file":
        raise StorageError(address, "it names no bucket", f"name one, as in {scheme}://BUCKET/FOLDER")
    if parts.netloc and scheme == "file":
        raise StorageError(address, f"{parts.netloc!r} would be a host", "name a whole path, as in file:///FOLDER")
    if scheme not in _OPTIONS:
        return _by_fsspec(address)
    options = dict(parse_qsl(parts.query))
    if unknown := sorted(options.keys() - set(_OPTIONS[scheme])):
        remedy = f"there are {', '.join(_OPTIONS[scheme])}; credentials belong in the environment"
        raise StorageError(address, f"{unknown[0]!r} is no option of such an address", remedy)
    path = f"{bucket(address)}{parts.path}".rstrip("/")
    with translated(address):
        match scheme:
            case "s3":
                return _s3(options, bucket(address), os.environ), path
            case "gs":
                return _gcs(options), path
            case _:
                return _azure(address, options, os.environ), path


def _s3(options: Mapping[str, str], of_bucket: str, environ: Mapping[str, str]) -> Any:
    from pyarrow.fs import AwsStandardS3RetryStrategy, S3FileSystem, resolve_s3_region

    endpoint = environ.get("AWS_ENDPOINT_URL_S3") or environ.get("AWS_ENDPOINT_URL")
    if endpoint and "endpoint_override" not in options:  # Amazon's own clients read it, and pyarrow's does not
        scheme, _, host = endpoint.rpartition("://")
        options = {"scheme": scheme or "https", "endpoint_override": host.rstrip("/"), **options}
    region = environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION")
    if "region" not in options and (region or "endpoint_override" not in options):
        options = {**options, "region": region or resolve_s3_region(of_bucket)}
    return S3FileSystem(
        **options,
        connect_timeout=CONNECT_S,
        request_timeout=ANSWER_S,
        retry_strategy=AwsStandardS3RetryStrategy(max_attempts=ATTEMPTS),
        allow_delayed_open=True,  # a small object is one request
    )


def _gcs(options: Mapping[str, str]) -> Any:
    from pyarrow.fs import GcsFileSystem

    # An emulator knows no credentials.
    return GcsFileSystem(**options, anonymous="endpoint_override" in options, retry_time_limit=timedelta(seconds=ANSWER_S))


def _azure(address: str, options: Mapping[str, str], environ: Mapping[str, str]) -> Any:
    from pyarrow.fs import AzureFileSystem

    netloc = urlsplit(address).netloc
    host = netloc.rpartition("@")[2] if "@" in netloc else ""
    account = host.partition(".")[0] or environ.get("AZURE_STORAGE_ACCOUNT_NAME") or environ.get("AZURE_STORAGE_ACCOUNT")
    if not account:
        raise StorageError(address, "it does not say whose account it is", "set AZURE_STORAGE_ACCOUNT_NAME")
    key, token = environ.get("AZURE_STORAGE_ACCOUNT_KEY"), environ.get("AZURE_STORAGE_SAS_TOKEN")
    return AzureFileSystem(account, account_key=key, sas_token=None if key else token, **options)


def _by_fsspec(address: str) -> tuple[Any, str]:
    from fsspec.core import url_to_fs
    from fsspec.registry import known_implementations
    from pyarrow.fs import FSSpecHandler, LocalFileSystem, PyFileSystem

    scheme = address.partition("://")[0]
    if scheme == "file":
        return LocalFileSystem(), urlsplit(address, allow_fragments=False).path.rstrip("/")
    if scheme not in known_implementations:
        remedy = "name s3://, gs://, az://, hf:// or another scheme of fsspec"
        raise StorageError(address, f"{scheme}:// is of no known kind of store", remedy)
    with translated(address):
        found, path = url_to_fs(address)
    return PyFileSystem(FSSpecHandler(found)), str(path).rstrip("/")
