"""The one downloader: limits, redirects, resume, checksums, turns."""

import hashlib
import threading
import time
import urllib.request
from pathlib import Path

import pytest
from tests.unit.data.web import Answer, Request, answering

from vitrine.errors import DownloadError
from vitrine.runtime import download as downloading
from vitrine.runtime.download import Limits, _Redirects, download, read_url

CONTENT = bytes(range(256)) * 5000


@pytest.fixture(autouse=True)
def without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloading, "FIRST_PAUSE_SECONDS", 0)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)


def test_several_that_want_one_file_take_turns_and_ask_for_it_once(tmp_path: Path) -> None:
    def slow(request: Request) -> Answer:
        time.sleep(0.2)
        return 200, {}, CONTENT

    with answering(slow) as (address, requests):
        threads = [threading.Thread(target=download, args=(f"{address}/a", tmp_path / "a")) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len(requests) == 1
    assert (tmp_path / "a").read_bytes() == CONTENT
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_more_bytes_than_allowed_are_refused_by_the_declared_length(tmp_path: Path) -> None:
    with answering(lambda request: (200, {}, CONTENT)) as (address, _):
        with pytest.raises(DownloadError, match=r"1,280,000 bytes; at most 1,000"):
            download(f"{address}/a", tmp_path / "a", limits=Limits(max_bytes=1000))
        with pytest.raises(DownloadError, match=r"at most 1,000"):
            read_url(f"{address}/a", limits=Limits(max_bytes=1000))
        assert read_url(f"{address}/a", limits=Limits(max_bytes=len(CONTENT))) == CONTENT
    assert not (tmp_path / "a").exists()


def test_a_download_that_takes_too_long_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloading, "CHUNK_BYTES", 1000)
    with (
        answering(lambda request: (200, {}, CONTENT)) as (address, _),
        pytest.raises(DownloadError, match=r"within 1e-06 s"),
    ):
        download(f"{address}/a", tmp_path / "a", limits=Limits(max_seconds=1e-6))


def test_redirects_are_followed_a_few_times(tmp_path: Path) -> None:
    def answer(request: Request) -> Answer:
        number = int(request.path.strip("/"))
        return (200, {}, b"here") if number == 0 else (302, {"Location": f"/{number - 1}"}, b"")

    with answering(answer) as (address, _):
        assert download(f"{address}/3", tmp_path / "near").read_bytes() == b"here"
        with pytest.raises(DownloadError, match="more than 3 redirects"):
            download(f"{address}/9", tmp_path / "far", limits=Limits(max_redirects=3))


@pytest.mark.parametrize("target", ["file:///etc/passwd", "ftp://host/x", "http://hub/x"])
def test_a_redirect_to_something_less_safe_is_not_followed(target: str) -> None:
    request = urllib.request.Request("https://hub/x")
    with pytest.raises(DownloadError, match="not followed"):
        _Redirects(Limits(max_redirects=5)).redirect_request(request, None, 302, "", {}, target)


@pytest.mark.parametrize("url", ["file:///etc/passwd", "ftp://host/x", "/etc/passwd"])
def test_only_the_web_is_downloaded(url: str, tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="only http and https"):
        download(url, tmp_path / "a")
    with pytest.raises(DownloadError, match="only http and https"):
        read_url(url, limits=Limits())


def test_the_token_is_not_sent_to_another_host() -> None:
    request = urllib.request.Request("https://hub/x", headers={"Authorization": "Bearer secret", "A": "b"})
    elsewhere = _Redirects(Limits(max_redirects=5)).redirect_request(
        request, None, 302, "", {}, "https://storage/blob"
    )
    assert not elsewhere.has_header("Authorization")
    assert elsewhere.has_header("A")
    assert (
        _Redirects(Limits(max_redirects=5))
        .redirect_request(request, None, 302, "", {}, "https://hub/y")
        .has_header("Authorization")
    )


def test_a_busy_server_is_asked_again_and_a_refusal_is_final(tmp_path: Path) -> None:
    answers = [(503, {}, b""), (200, {}, b"here")]
    with answering(lambda request: answers.pop(0)) as (address, _):
        assert download(f"{address}/a", tmp_path / "a").read_bytes() == b"here"
    with answering(lambda request: (403, {}, b"")) as (address, requests):
        with pytest.raises(DownloadError, match="403"):
            download(f"{address}/b", tmp_path / "b")
        assert len(requests) == 1


def test_a_part_is_resumed_only_where_a_change_would_be_noticed(tmp_path: Path) -> None:
    with answering(lambda request: (200, {}, CONTENT)) as (address, requests):
        (tmp_path / "a.part").write_bytes(b"something else")
        assert download(f"{address}/a", tmp_path / "a").read_bytes() == CONTENT
        assert requests[-1].range is None
        (tmp_path / "b.part").write_bytes(CONTENT[:1000])
        digest = hashlib.sha256(CONTENT).hexdigest()
        assert download(f"{address}/b", tmp_path / "b", sha256=digest).read_bytes() == CONTENT
        assert requests[-1].range == "bytes=1000-"
        # Of another version: noticed by the checksum and downloaded again from the start.
        (tmp_path / "c.part").write_bytes(b"x" * 1000)
        assert download(f"{address}/c", tmp_path / "c", sha256=digest).read_bytes() == CONTENT


def test_another_checksum_leaves_no_file(tmp_path: Path) -> None:
    with (
        answering(lambda request: (200, {}, CONTENT)) as (address, requests),
        pytest.raises(DownloadError, match="another SHA-256"),
    ):
        download(f"{address}/a", tmp_path / "a", sha256="0" * 64)
    assert len(requests) == 2
    assert list(tmp_path.iterdir()) == []
