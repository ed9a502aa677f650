"""What is wrong with an object store, in a sentence with a remedy. pyarrow and fsspec say it in texts, each in its own."""

from collections.abc import Iterator
from contextlib import contextmanager

from asyncrl.core.errors import AsyncRLError, RecipeError

_CREDENTIALS = {
    "s3": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_PROFILE) to keys that may read, write and list there",
    "gs": "set GOOGLE_APPLICATION_CREDENTIALS to the key file of an account that may read, write and list there",
    "az": "set AZURE_STORAGE_ACCOUNT_NAME, and AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN, to ones that may read, "
    "write and list there",
    "hf": "set HF_TOKEN to a token that may write there",
}
_ENDPOINT = {
    "s3": "correct the address, AWS_REGION or, for a store that is not Amazon's, AWS_ENDPOINT_URL",
    "gs": "correct the address, or the network",
    "az": "correct AZURE_STORAGE_ACCOUNT_NAME, or the network",
    "hf": "correct HF_ENDPOINT, or the network",
}
_NO_BUCKET = (
    "no_such_bucket",
    "nosuchbucket",
    "bucket does not exist",
    "specified bucket",
    "bucket not found",
    "container does not exist",
)
_DENIED = (
    "access_denied",
    "accessdenied",
    "access denied",
    "invalid_access_key",
    "invalidaccesskey",
    "invalid_client_token",
    "signature",
    "credential",
    "unauthorized",
    "unauthenticated",
    "permission",
    "forbidden",
    "status 401",
    "status 403",
    "expired_token",
    "expiredtoken",
    "authentication",
)
_BUSY = ("slow_down", "slowdown", "slow down", "throttl", "too many requests", "status 429", "status 503", "service_unavailable")
_NETWORK = (
    "network_connection",
    "curlcode",
    "couldn't connect",
    "could not connect",
    "connection",
    "resolve",
    "timed out",
    "timeout",
    "unavailable",
    "unreachable",
)


class StorageError(AsyncRLError):
    """An object store did not do what it was asked to.

    Args:
        address: what was asked for.
        problem: what is wrong.
    """

    def __init__(self, address: str, problem: str, remedy: str) -> None:
        self.address, self.problem, self.remedy = address, problem, remedy
        super().__init__(f"{address}: {problem}; {remedy}")

    def of_key(self, place: str) -> RecipeError:
        """The refusal of the recipe key that names the address."""
        return RecipeError(place, f"{self.address}: {self.problem}", self.remedy)


class NoSuchObject(StorageError):
    """There is no object at the address."""


@contextmanager
def translated(address: str) -> Iterator[None]:
    """Turn what the clients of object stores raise in this context into a :class:`StorageError` about ``address``."""
    try:
        yield
    except AsyncRLError:
        raise
    except Exception as error:  # each fsspec implementation raises what its client does
        raise explained(address, error) from error


def explained(address: str, error: Exception) -> StorageError:
    """Say what a client's error means, as far as its text tells."""
    text = " ".join((str(error) or type(error).__name__).split())
    searched, scheme = text.lower(), family(address)

    def has(words: tuple[str, ...]) -> bool:
        return any(word in searched for word in words)

    if isinstance(error, ImportError):
        return StorageError(address, f"a package for it is missing ({text})", f"pip install {error.name or 'it'}")
    if has(_NO_BUCKET):
        return StorageError(address, f"there is no bucket {bucket(address)!r}", "make it, or correct the address")
    if isinstance(error, FileNotFoundError):
        return NoSuchObject(address, "there is nothing", "correct the address")
    if has(_BUSY):
        return StorageError(address, f"the store is too busy ({_cut(text)})", "try again later, or ask for a higher rate")
    if isinstance(error, PermissionError) or has(_DENIED):
        return StorageError(address, f"the store refuses the credentials ({_cut(text)})", _remedy(_CREDENTIALS, scheme))
    if isinstance(error, ConnectionError | TimeoutError) or has(_NETWORK):
        return StorageError(address, f"the store cannot be reached ({_cut(text)})", _remedy(_ENDPOINT, scheme))
    return StorageError(address, _cut(text), "correct the address, or see to the store")


def family(address: str) -> str:
    """The kind of store that an address names, by its usual scheme."""
    scheme = address.partition("://")[0]
    return {"s3a": "s3", "gcs": "gs", "abfs": "az", "abfss": "az"}.get(scheme, scheme)


def bucket(address: str) -> str:
    """The bucket or container of an address; Azure's account may come after it, as in ``abfs://CONTAINER@ACCOUNT.dfs...``."""
    place = address.partition("://")[2].partition("?")[0].partition("/")[0]
    return place.partition("@")[0] if family(address) == "az" else place.rpartition("@")[2]


def _remedy(remedies: dict[str, str], scheme: str) -> str:
    return remedies.get(scheme, "see the documentation of the fsspec implementation of this scheme")


def _cut(text: str) -> str:
    return text if len(text) <= 300 else f"{text[:297]}..."
