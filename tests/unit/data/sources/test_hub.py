import hashlib
import json
import re

import pytest
from unit.data.pictures import encoded, smooth
from unit.data.web import Answer, Request, answering

pytest.importorskip("huggingface_hub")
pyarrow = pytest.importorskip("pyarrow")

from vitrine.data.sources.hub import fetch_dataset  # noqa: E402
from vitrine.data.sources.opening import open_splits  # noqa: E402
from vitrine.errors import DataError  # noqa: E402
from vitrine.runtime.progress import listening  # noqa: E402

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Heard:
    def __init__(self):
        self.remarks = []

    def notice(self, text, advice=()):
        self.remarks.append(text)


def parquet_bytes(count: int) -> bytes:
    import io

    import pyarrow.parquet

    rows = [{"bytes": encoded(smooth(8, 8, seed=n)), "path": None} for n in range(count)]
    table = pyarrow.table({"img": rows, "label": [n % 2 for n in range(count)]})
    features = {"img": {"_type": "Image"}, "label": {"names": ["cat", "dog"], "_type": "ClassLabel"}}
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    stream = io.BytesIO()
    pyarrow.parquet.write_table(table, stream)
    return stream.getvalue()


def hub(files: dict[str, bytes], *, served: dict[str, bytes] | None = None):
    """Answer as the hub does for the set owner/pets: its facts, and its files by commit."""

    def answer(request: Request) -> Answer:
        path = request.path.partition("?")[0]
        if path.startswith("/api/datasets/owner/pets"):
            siblings = [
                {
                    "rfilename": name,
                    "size": len(data),
                    "blobId": "x",
                    "lfs": {
                        "sha256": hashlib.sha256(data).hexdigest(),
                        "size": len(data),
                        "pointerSize": 100,
                    },
                }
                for name, data in files.items()
            ]
            facts = {"id": "owner/pets", "sha": COMMIT, "siblings": siblings, "private": False, "tags": []}
            return 200, {"Content-Type": "application/json"}, json.dumps(facts).encode()
        name = path.partition(f"/resolve/{COMMIT}/")[2]
        if name not in files:
            return 404, {"X-Error-Code": "RepoNotFound", "X-Error-Message": "not found"}, b""
        etag = hashlib.sha256(files[name]).hexdigest()
        return 200, {"ETag": f'"{etag}"', "X-Repo-Commit": COMMIT}, (served or files)[name]

    return answering(answer)


FILES = {
    "data/train-00000-of-00001.parquet": parquet_bytes(6),
    "data/test-00000-of-00001.parquet": parquet_bytes(2),
    "README.md": b"# pets",
}


def test_a_set_is_brought_by_name_and_not_twice(tmp_path, monkeypatch):
    with hub(FILES) as (address, requests):
        folder = fetch_dataset("owner/pets", endpoint=address, cache=tmp_path)
        splits = open_splits(folder, val_fraction=0)
        assert {name: len(source) for name, source in splits.items()} == {"train": 6, "test": 2}
        assert splits["train"].classes == ("cat", "dog")
        brought = [request for request in requests if request.method == "GET" and "parquet" in request.path]
        assert len(brought) == 2
        assert not any("README" in request.path for request in requests)
        assert fetch_dataset("owner/pets", endpoint=address, cache=tmp_path) == folder
        again = [request for request in requests if request.method == "GET" and "parquet" in request.path]
        assert len(again) == 2


def test_the_address_hub_brings_and_opens_in_one_go(tmp_path, monkeypatch):
    monkeypatch.setenv("VITRINE_CACHE", str(tmp_path))
    with hub(FILES) as (address, _):
        monkeypatch.setenv("HF_ENDPOINT", address)
        splits = open_splits("hub:owner/pets", val_fraction=0)
    assert splits["test"].address == "hub:owner/pets" and len(splits["train"]) == 6


def test_a_set_that_was_brought_is_opened_without_the_hub(tmp_path):
    with hub(FILES) as (address, _):
        folder = fetch_dataset("owner/pets", endpoint=address, cache=tmp_path)
    nobody = "http://127.0.0.1:9"
    heard = Heard()
    with listening(heard):
        assert fetch_dataset("owner/pets", endpoint=nobody, cache=tmp_path) == folder
    [remark] = heard.remarks
    assert "cannot be reached" in remark and "owner/pets" in remark and "0123456789ab" in remark
    assert fetch_dataset("owner/pets", endpoint=nobody, cache=tmp_path, revision=COMMIT) == folder
    for other in ({"revision": "v2"}, {"config": "small"}):
        with pytest.raises(DataError, match="cannot reach owner/pets"):
            fetch_dataset("owner/pets", endpoint=nobody, cache=tmp_path, **other)
    next(folder.glob("train*")).unlink()
    with pytest.raises(DataError, match="cannot reach owner/pets"):
        fetch_dataset("owner/pets", endpoint=nobody, cache=tmp_path)


def test_a_server_that_answers_has_the_last_word_on_a_set(tmp_path):
    with hub(FILES) as (address, _):
        fetch_dataset("owner/pets", endpoint=address, cache=tmp_path)
    with (
        answering(lambda request: (404, {"X-Error-Code": "RepoNotFound"}, b"")) as (address, _),
        pytest.raises(DataError, match="cannot reach owner/pets"),
    ):
        fetch_dataset("owner/pets", endpoint=address, cache=tmp_path)


@pytest.mark.parametrize("name", ["../../above.parquet", "/tmp/above.parquet", "data/../../../above.parquet"])
def test_a_set_writes_nothing_outside_its_folder(tmp_path, name):
    with (
        hub({name: parquet_bytes(2)}) as (address, requests),
        pytest.raises(DataError, match=f"owner/pets .*outside .*{re.escape(repr(name))}"),
    ):
        fetch_dataset("owner/pets", endpoint=address, cache=tmp_path / "cache")
    assert len(requests) == 1 and not list(tmp_path.rglob("*.parquet"))


def test_an_interrupted_file_goes_on_where_it_stopped(tmp_path):
    name = "data/train-00000-of-00001.parquet"
    with hub(FILES) as (address, requests):
        fetch_dataset("owner/pets", endpoint=address, cache=tmp_path)
        blob = next(path for path in tmp_path.rglob("*.parquet") if "train" in path.name)
        # As an interruption leaves it: a part of the file under the name of what is not whole yet.
        blob.with_name(blob.name + ".part").write_bytes(blob.read_bytes()[:1000])
        blob.unlink()
        requests.clear()
        folder = fetch_dataset("owner/pets", endpoint=address, cache=tmp_path)
        assert (folder / blob.name).read_bytes() == FILES[name]
        ranges = [
            request.range for request in requests if request.method == "GET" and "train" in request.path
        ]
        assert ranges == ["bytes=1000-"]


def test_a_file_that_differs_from_its_checksum_is_refused(tmp_path):
    wrong = {name: data[:-8] + b"12345678" for name, data in FILES.items()}
    with (
        hub(FILES, served=wrong) as (address, _),
        pytest.raises(DataError, match="another SHA-256"),
    ):
        fetch_dataset("owner/pets", endpoint=address, cache=tmp_path)
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_set_that_is_not_there_or_has_no_parquet_says_so(tmp_path):
    with hub({"README.md": b"x"}) as (address, _):
        with pytest.raises(DataError, match=r"owner/pets .*no Parquet"):
            fetch_dataset("owner/pets", endpoint=address, cache=tmp_path)
        with pytest.raises(DataError, match=r"owner/dogs .*404"):
            fetch_dataset("owner/dogs", endpoint=address, cache=tmp_path)
    with pytest.raises(DataError, match="is named owner/name, got 'pets'"):
        fetch_dataset("pets", endpoint="http://127.0.0.1:9", cache=tmp_path)
