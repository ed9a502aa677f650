import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from object_store import ObjectStore, served

from asyncrl.core.errors import RecipeError
from asyncrl.core.storage import address
from asyncrl.core.storage.address import file_system, is_address, joined, last_name, local_run_dir, without_name
from asyncrl.core.storage.errors import NoSuchObject, StorageError
from asyncrl.core.storage.fetched import fetched
from asyncrl.core.storage.storage import Storage


@pytest.fixture(scope="module")
def store() -> Iterator[ObjectStore]:
    with served() as store:
        yield store


@pytest.fixture(params=["s3", "file", "memory"])
def somewhere(request: pytest.FixtureRequest, store: ObjectStore, tmp_path: Path) -> str:
    """An address of each way in which stores are reached: pyarrow's own client, folders, and fsspec."""
    roots = {"s3": store.make_bucket(), "file": f"file://{tmp_path}/store", "memory": f"memory://{tmp_path.name}"}
    return f"{roots[request.param]}/below"


def test_objects_are_written_read_listed_and_removed(somewhere: str, tmp_path: Path):
    storage, source = Storage(somewhere), tmp_path / "source"
    storage.check_writable()
    assert storage.listing() == {}
    source.write_bytes(os.urandom(20 << 20))
    written = storage.put("deep/in/large", source)
    storage.put_bytes("small", b"text")
    assert {name: each.size for name, each in storage.listing().items()} == {"deep/in/large": 20 << 20, "small": 4}
    assert list(storage.listing("deep")) == list(storage.listing_of("deep/in/large")) == ["deep/in/large"]
    assert storage.read("small") == b"text"
    assert storage.fetch("deep/in/large", tmp_path / "new" / "copy") == written
    assert (tmp_path / "new" / "copy").read_bytes() == source.read_bytes()
    storage.remove("small")
    storage.remove_all("deep")
    assert storage.listing() == {} == storage.listing_of("small")


def test_an_object_is_there_whole_or_not_at_all(somewhere: str, tmp_path: Path):
    storage, source, seen = Storage(somewhere), tmp_path / "source", list[object]()
    source.write_bytes(os.urandom(20 << 20))

    def fail() -> None:
        seen.append((dict(storage.listing()), storage.read("large")))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        storage.put("large", source, fail)
    assert somewhere.startswith("memory") or seen == [({}, None)]
    assert storage.listing() == {}
    assert storage.read("large") is None


def test_a_mark_that_is_written_again_and_again_is_never_read_half(tmp_path: Path):
    storage, marks = Storage(f"file://{tmp_path}/store"), [b"a" * 100_000, b"b" * 100_000]
    storage.put_bytes("mark", marks[0])
    with ThreadPoolExecutor() as threads:
        writing = threads.submit(lambda: [storage.put_bytes("mark", marks[turn % 2]) for turn in range(300)])
        while not writing.done():
            assert storage.read("mark") in marks
    writing.result()
    assert list(storage.listing()) == os.listdir(tmp_path / "store") == ["mark"]


def test_a_file_that_cannot_be_fetched_stays_as_it_was(somewhere: str, tmp_path: Path):
    (tmp_path / "copy").write_bytes(b"before")
    with pytest.raises(NoSuchObject):
        Storage(somewhere).fetch("nothing", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == b"before"
    assert not list(tmp_path.glob(".copy*"))


def test_once_an_object_cannot_be_fetched_no_further_one_is_asked_for(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    monkeypatch.setattr(address, "ATTEMPTS", 1)
    storage, asked = Storage(f"{store.make_bucket()}/runs"), list[str]()

    def refuse(method: str, path: str) -> tuple[int, str]:
        asked.append(path)
        return 403, "AccessDenied"

    monkeypatch.setattr(store, "refuse", refuse)
    with pytest.raises(StorageError, match="the store refuses the credentials"):
        storage.fetch_all({str(number): tmp_path / str(number) for number in range(1000)})
    assert 0 < len(asked) < 500


def test_what_is_not_there_is_told_apart_from_what_fails(somewhere: str, tmp_path: Path):
    storage = Storage(somewhere)
    assert storage.read("nothing") is None
    storage.remove("nothing")
    storage.remove_all("nothing")
    with pytest.raises(NoSuchObject, match="nothing: there is nothing"):
        storage.fetch("nothing", tmp_path / "copy")


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("s3://no-such-bucket/runs", "there is no bucket 'no-such-bucket'; make it, or correct the address"),
        ("s3:///runs", "it names no bucket; name one, as in s3://BUCKET/FOLDER"),
        ("s3://bucket/runs?colour=red", "'colour' is no option of such an address; there are endpoint_override, region, scheme"),
        ("s3://key:secret@bucket/runs", "there are credentials in the address, which is written into recipes and logs"),
        ("file://mnt/runs", "'mnt' would be a host; name a whole path, as in file:///FOLDER"),
        ("gopher://bucket/runs", "gopher:// is of no known kind of store; name s3://, gs://, az://, hf:// or another"),
        ("az://container/runs", "it does not say whose account it is; set AZURE_STORAGE_ACCOUNT_NAME"),
        ("s3://bucket/runs?endpoint_override=127.0.0.1:9&scheme=http", "the store cannot be reached"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_with_a_remedy(
    store: ObjectStore, monkeypatch: pytest.MonkeyPatch, named: str, said: str
):
    monkeypatch.setattr(address, "ATTEMPTS", 1)
    with pytest.raises(StorageError) as refused:
        Storage(named).check_writable()
    assert said in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((403, "AccessDenied"), "the store refuses the credentials"),
        ((403, "SignatureDoesNotMatch"), "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        ((400, "ExpiredToken"), "the store refuses the credentials"),
        ((503, "SlowDown"), "the store is too busy"),
        ((500, "InternalError"), "see to the store"),
    ],
)
def test_what_a_store_answers_is_told(store: ObjectStore, monkeypatch: pytest.MonkeyPatch, answer: tuple[int, str], said: str):
    monkeypatch.setattr(address, "ATTEMPTS", 1)
    storage = Storage(f"{store.make_bucket()}/runs")
    monkeypatch.setattr(store, "refuse", lambda method, path: answer if method in ("PUT", "POST") else None)
    with pytest.raises(StorageError) as refused:
        storage.check_writable()
    assert said in str(refused.value)
    assert str(refused.value).startswith(f"{storage.address}: ")


def test_a_store_that_is_too_busy_for_a_moment_is_asked_again(store: ObjectStore, monkeypatch: pytest.MonkeyPatch):
    storage, refusals = Storage(f"{store.make_bucket()}/runs"), iter([(503, "SlowDown")] * 2)
    monkeypatch.setattr(store, "refuse", lambda method, path: next(refusals, None))
    storage.put_bytes("name", b"content")
    assert storage.read("name") == b"content"


@pytest.mark.parametrize(
    ("named", "path"),
    [
        ("abfs://container@account.dfs.core.windows.net/runs", "container/runs"),
        ("abfss://container@account.dfs.core.windows.net/runs/", "container/runs"),
        ("gs://bucket/runs#1/of?endpoint_override=127.0.0.1:9", "bucket/runs#1/of"),
        ("file:///mnt/runs#1", "/mnt/runs#1"),
    ],
)
def test_an_address_says_where_in_which_bucket(monkeypatch: pytest.MonkeyPatch, named: str, path: str):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "a2V5")
    assert file_system(named)[1] == path


def test_addresses_are_joined_and_taken_apart_with_their_options():
    whole = joined("s3://bucket/runs/?region=eu", "name")
    assert whole == "s3://bucket/runs/name?region=eu"
    assert last_name(whole) == "name"
    assert without_name(whole) == "s3://bucket/runs?region=eu"
    assert is_address(whole)
    assert not is_address("runs/s3")
    assert local_run_dir(whole) == Path("runs")
    assert local_run_dir("elsewhere") == Path("elsewhere")


def test_files_and_folders_are_fetched_into_the_cache_and_again_when_they_change(
    somewhere: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("ASYNCRL_CACHE", str(tmp_path / "cache"))
    storage = Storage(somewhere)
    for name in ("model/config.json", "model/weights/part", "tasks.jsonl"):
        storage.put_bytes(name, name.encode())
    model = joined(somewhere, "model")
    only = fetched(model, "model.path", "config.json".__eq__)
    assert [path.name for path in only.rglob("*")] == ["config.json"]
    assert (fetched(model, "model.path") / "weights" / "part").read_bytes() == b"model/weights/part"
    tasks = fetched(joined(somewhere, "tasks.jsonl"), "tasks.train[0]")
    assert (tasks.name, tasks.read_bytes()) == ("tasks.jsonl", b"tasks.jsonl")
    storage.put_bytes("tasks.jsonl", b"longer than before")
    assert fetched(joined(somewhere, "tasks.jsonl"), "tasks.train[0]").read_bytes() == b"longer than before"
    assert tasks.read_bytes() == b"tasks.jsonl"
    with pytest.raises(RecipeError, match=r"^model.path: .*other: there is nothing; correct the address"):
        fetched(joined(somewhere, "other"), "model.path")
