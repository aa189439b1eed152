"""The cache of answers is bounded, forgets with the model, and tells pictures, tasks and models apart."""

import json
import shutil
import urllib.request

import torch
from servers import jpeg, saved_vit, serving

from vitrine.serving.answer_cache import OVERHEAD_BYTES, AnswerCache


def test_least_recently_used_answers_are_dropped_beyond_the_bound() -> None:
    each = 40 + OVERHEAD_BYTES
    cache = AnswerCache(3 * each)
    keys = [cache.key(0, "scores", bytes([number])) for number in range(4)]
    for number, key in enumerate(keys[:3]):
        cache.put(key, torch.full((10,), float(number)))
    assert cache.get(keys[0]) is not None
    cache.put(keys[3], torch.zeros(10))
    assert cache.get(keys[1]) is None and cache.get(keys[0]) is not None
    assert len(cache) == 3 and cache.held_bytes == 3 * each <= cache.max_bytes
    cache.put(cache.key(0, "scores", b"large"), torch.zeros(10_000))
    assert len(cache) == 3  # an answer that never fits drops no other
    cache.forget(0)
    assert len(cache) == cache.held_bytes == 0


def test_a_row_of_a_batch_does_not_keep_the_batch() -> None:
    cache = AnswerCache(10_000)
    key = cache.key(0, "scores", b"")
    cache.put(key, torch.zeros(64, 10)[3])
    row = cache.get(key)
    assert row is not None and row.untyped_storage().nbytes() == 40


def test_versions_tasks_and_pictures_have_answers_of_their_own() -> None:
    cache = AnswerCache(10_000)
    keys = {cache.key(v, task, data) for v in (0, 1) for task in ("a", "b") for data in (b"x", b"y")}
    assert len(keys) == 8


def ask(port: int, path: str, picture: bytes, **headers: str) -> dict:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", picture, names)
    return json.load(urllib.request.urlopen(request, timeout=20))


def test_a_repeated_picture_is_computed_once_until_new_weights_are_loaded(tmp_path) -> None:
    folder, newer = saved_vit(tmp_path / "model"), saved_vit(tmp_path / "newer", seed=5)
    kind = {"Content_Type": "image/jpeg"}
    with serving([f"m={folder}"], cache_bytes=100_000) as server:
        first = ask(server.port, "/predict?logits=true", jpeg(1), **kind)
        again = ask(server.port, "/predict?logits=true&top=2", jpeg(1), **kind)
        assert again["logits"] == first["logits"] and len(again["answers"]) == 2
        assert server.service.num_pictures == 1 and server.service.cache.counts.hits == 1
        ask(server.port, "/embed", jpeg(1), **kind)
        ask(server.port, "/predict", jpeg(2), **kind)
        assert server.service.num_pictures == 3
        shutil.copytree(newer, folder, dirs_exist_ok=True)
        load = urllib.request.Request(f"{server.address}/v2/repository/models/m/load", method="POST")
        urllib.request.urlopen(load, timeout=20)
        assert len(server.service.cache) == 0
        assert ask(server.port, "/predict?logits=true", jpeg(1), **kind)["logits"] != first["logits"]
        text = urllib.request.urlopen(f"{server.address}/metrics", timeout=20).read().decode()
        assert "vitrine_cache_hits 1.0" in text and "vitrine_cached_answers 1.0" in text
    with serving([folder]) as server:  # switched off
        for _ in range(2):
            ask(server.port, "/predict", jpeg(1), **kind)
        assert server.service.num_pictures == 2
