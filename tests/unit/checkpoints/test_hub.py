"""The hub and official URLs, against a server on this machine that answers as they do."""

import hashlib
import json
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from unit.checkpoints.made import images, logits, small_vit

from vitrine.checkpoints import load, save
from vitrine.errors import CheckpointError, ConfigError, MissingExtraError
from vitrine.runtime.download import download_to_cache
from vitrine.runtime.progress import listening

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub(BaseHTTPRequestHandler):
    """Answers /OWNER/NAME/resolve/REVISION/FILE and /files/NAME, with ETag and Range, and may break off."""

    server: Any

    def do_HEAD(self) -> None:
        self.answer(with_body=False)

    def do_GET(self) -> None:
        self.answer(with_body=True)

    def answer(self, *, with_body: bool) -> None:
        self.server.seen.append((self.command, self.path, self.headers.get("Range")))
        name = self.path.split("?")[0].split("/")[-1]
        is_known = (
            self.path.startswith("/files/")
            or self.path.startswith("/owner/model/resolve/main/")
            or COMMIT in self.path
        )
        path = self.server.folder / name
        if self.path.startswith("/owner/gated/"):
            self.send_response(403)
            self.send_header("X-Error-Code", "GatedRepo")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if not is_known or not path.is_file():
            self.send_response(404)
            code = "EntryNotFound" if is_known else "RepoNotFound"
            self.send_header("X-Error-Code", code)
            self.send_header("X-Repo-Commit", COMMIT)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        data = path.read_bytes()
        etag, start = f'"{hashlib.sha256(data).hexdigest()}"', 0
        asked = self.headers.get("Range")
        if asked and self.headers.get("If-Range", etag) == etag:
            start = int(asked.removeprefix("bytes=").split("-")[0])
        self.send_response(206 if start else 200)
        self.send_header("ETag", etag)
        self.send_header("X-Repo-Commit", COMMIT)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("Content-Length", str(len(data) - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if with_body:
            stop = len(data)
            if self.server.breaks and len(data) > 100_000:
                self.server.breaks -= 1
                stop = start + (len(data) - start) // 2
            self.wfile.write(data[start:stop])
            self.close_connection = stop < len(data)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    served = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    served.folder, served.seen, served.breaks = tmp_path / "served", [], 0  # type: ignore[attr-defined]
    thread = threading.Thread(target=served.serve_forever, daemon=True)
    thread.start()
    served.url = f"http://127.0.0.1:{served.server_port}"  # type: ignore[attr-defined]
    point_hub_at(monkeypatch, served.url, cache=tmp_path / "cache")  # type: ignore[attr-defined]
    yield served
    served.shutdown()
    served.server_close()
    thread.join()


def point_hub_at(monkeypatch: pytest.MonkeyPatch, url: str, *, cache: Path) -> None:
    """huggingface-hub reads its environment once, at import; what it keeps of it is set here."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr("huggingface_hub.file_download.HF_HUB_CACHE", str(cache), raising=False)
    monkeypatch.setenv("VITRINE_CACHE", str(cache / "vitrine"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)


def go_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


class Heard:
    def __init__(self) -> None:
        self.started: list[tuple[str, int | None]] = []
        self.steps = 0
        self.remarks: list[str] = []

    def start(self, what: str, total: int | None) -> None:
        self.started.append((what, total))

    def advance(self, steps: int) -> None:
        self.steps += steps

    def finish(self) -> None:
        pass

    def notice(self, text: str, advice: object = ()) -> None:
        self.remarks.append(text)


def test_code_of_a_repository_is_neither_downloaded_nor_run(server: Any, tmp_path: Path) -> None:
    model = small_vit()
    save(model, server.folder)
    (server.folder / "modeling.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    config = server.folder / "config.json"
    auto = {"AutoConfig": "modeling.Config", "AutoModel": "modeling.Model"}
    config.write_text(json.dumps(json.loads(config.read_text()) | {"auto_map": auto}))
    with listening(Heard()):
        load("owner/model")
    assert not any(path.endswith(".py") for _, path, _ in server.seen)
    load(server.folder)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("name", ["owner/model", "hf-hub:owner/model"])
def test_a_hub_id_is_fetched_with_progress_kept_and_found_again_offline(
    server: Any, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    model = small_vit()
    save(model, server.folder, classes=list("abcde"))
    heard = Heard()
    with listening(heard):
        loaded = load(name)
    assert loaded.classes == tuple("abcde")
    assert torch.equal(logits(loaded.model, images(model)), logits(model, images(model)))
    size = (server.folder / "model.safetensors").stat().st_size
    assert heard.steps >= size
    assert any(total == size for _, total in heard.started)
    bodies = [path for command, path, _ in server.seen if command == "GET" and "model.safetensors" in path]
    assert len(bodies) == 1
    load(name)
    assert len([p for c, p, _ in server.seen if c == "GET" and "model.safetensors" in p]) == 1
    go_offline(monkeypatch)
    count = len(server.seen)
    assert load(name).classes == tuple("abcde")
    assert len(server.seen) == count


def test_offline_a_repository_loads_from_the_only_files_that_it_has(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its other names are asked for first; the cache knows that they do not exist."""
    save(small_vit(), server.folder)
    config = (server.folder / "config.json").read_bytes()
    weights = (server.folder / "model.safetensors").read_bytes()
    for path in server.folder.iterdir():
        path.unlink()
    (server.folder / "config.json").write_bytes(config)
    torch.save(safetensors.torch.load(weights), server.folder / "pytorch_model.bin")
    online = load("owner/model").model
    go_offline(monkeypatch)
    assert torch.equal(logits(load("owner/model").model, images(online)), logits(online, images(online)))


def test_a_hub_download_that_breaks_off_is_resumed(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # It keeps whole pieces only, of 10 MB; ours is small.
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 100_000)
    save(small_vit(width=128, mlp_width=256), server.folder)
    server.breaks = 1
    load("owner/model")
    ranges = [
        asked for command, path, asked in server.seen if command == "GET" and "model.safetensors" in path
    ]
    assert len(ranges) == 2
    assert ranges[1] is not None
    assert ranges[1] != "bytes=0-"


def test_offline_without_a_copy_says_so(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    go_offline(monkeypatch)
    with pytest.raises(CheckpointError, match=r"owner/model/model.safetensors .*HF_HUB_OFFLINE"):
        load("owner/model")


def test_no_network_says_so_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    point_hub_at(monkeypatch, "http://127.0.0.1:9", cache=tmp_path)
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # it tries five times, ever more slowly
    heard = Heard()
    with (
        listening(heard),
        pytest.raises(CheckpointError, match=r"owner/model.*(cannot be reached|could not download)"),
    ):
        load("owner/model")
    [remark] = heard.remarks
    assert "owner/model" in remark and "trying again" in remark
    assert capsys.readouterr().err == ""
    with pytest.raises(CheckpointError, match=r"http://127.0.0.1:9/x.npz"):
        load("http://127.0.0.1:9/x.npz")


def test_an_unknown_repository_says_so(server: Any) -> None:
    server.folder.mkdir()
    with pytest.raises(CheckpointError, match=r"nobody/nothing .*no such folder"):
        load("nobody/nothing")


def test_a_repository_without_weights_says_so(server: Any) -> None:
    server.folder.mkdir()
    with pytest.raises(CheckpointError, match=r"owner/model .*no weights: .*no model\.safetensors"):
        load("owner/model")


def test_a_repository_whose_terms_were_not_accepted_says_so(server: Any) -> None:
    with pytest.raises(CheckpointError, match=r"owner/gated.*terms.*hf auth login"):
        load("owner/gated")


def test_a_shard_that_the_index_names_and_nobody_has_says_so(server: Any) -> None:
    save(small_vit(), server.folder)
    (server.folder / "model.safetensors").unlink()
    index = {"metadata": {}, "weight_map": {"head.weight": "model-00001-of-00002.safetensors"}}
    (server.folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"model-00001-of-00002.safetensors.*is not in the repository"):
        load("owner/model")


def test_without_the_hubs_package_it_says_what_installs_it(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub.errors", None)
    with pytest.raises(MissingExtraError, match="huggingface-hub"):
        load("owner/model")


def test_a_path_that_is_not_there_never_tries_the_network(
    server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"^runs holds no .*run") as refused:
        load("runs/latest")
    assert [advice.verb for advice in refused.value.advice] == ["finetune"]
    for name in ("runs/other", "./model.npz", "weights/model.npz"):
        with pytest.raises(CheckpointError, match=r"no such file or folder"):
            load(name)
    assert server.seen == []


@pytest.mark.parametrize("name", ["ViT-Q/16", "ViTB/32", "ViT-Q/16x8"])
def test_a_misspelt_variant_is_refused_with_the_nearest_and_never_tries_the_network(
    server: Any, name: str
) -> None:
    with pytest.raises(ConfigError, match=f"no model .*{name}") as refused:
        load(name)
    assert refused.value.suggestions and all(one.startswith("ViT-") for one in refused.value.suggestions)
    assert server.seen == []


def test_an_official_url_is_fetched_with_progress_and_kept(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small_vit()
    server.folder.mkdir()
    save(model, server.folder / "ViT.npz", to="npz")
    heard = Heard()
    with listening(heard):
        loaded = load(f"{server.url}/files/ViT.npz")
    assert torch.equal(logits(loaded.model, images(model)), logits(model, images(model)))
    assert heard.started[0][0].endswith("ViT.npz")
    load(f"{server.url}/files/ViT.npz")
    assert len(server.seen) == 1
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    load(f"{server.url}/files/ViT.npz")
    with pytest.raises(CheckpointError, match=r"HF_HUB_OFFLINE"):
        load(f"{server.url}/files/other.npz")


def test_two_that_load_one_url_at_once_take_turns_and_ask_for_it_once(
    server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.folder.mkdir()
    save(small_vit(), server.folder / "ViT.npz", to="npz")
    answer = Hub.answer

    def slowly(self: Hub, *, with_body: bool) -> None:
        time.sleep(0.3)
        answer(self, with_body=with_body)

    monkeypatch.setattr(Hub, "answer", slowly)
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(download_to_cache(f"{server.url}/files/ViT.npz")))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(server.seen) == 1
    assert len(set(found)) == 1
    assert found[0].read_bytes() == (server.folder / "ViT.npz").read_bytes()
    assert list(found[0].parent.iterdir()) == [found[0]]


def test_a_url_that_breaks_off_is_resumed(server: Any) -> None:
    model = small_vit(width=128, mlp_width=256)
    server.folder.mkdir()
    save(model, server.folder / "ViT.npz", to="npz")
    server.breaks = 1
    loaded = load(f"{server.url}/files/ViT.npz")
    assert server.seen[1][2] is not None
    assert torch.equal(logits(loaded.model, images(model)), logits(model, images(model)))


def test_a_file_that_changed_meanwhile_is_fetched_anew(server: Any) -> None:
    server.folder.mkdir()
    save(small_vit(width=128, mlp_width=256), server.folder / "ViT.npz", to="npz")
    server.breaks = 4
    with pytest.raises(CheckpointError):
        load(f"{server.url}/files/ViT.npz")
    model = small_vit(seed=5, width=128, mlp_width=256)
    save(model, server.folder / "ViT.npz", to="npz", overwrite=True)
    loaded = load(f"{server.url}/files/ViT.npz")
    assert torch.equal(logits(loaded.model, images(model)), logits(model, images(model)))


def test_a_missing_url_says_what_the_server_answered(server: Any) -> None:
    server.folder.mkdir()
    with pytest.raises(CheckpointError, match=r"404"):
        load(f"{server.url}/files/nothing.npz")
