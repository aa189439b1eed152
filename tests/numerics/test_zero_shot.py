"""Zero-shot classifiers compute what CLIP and SigLIP of transformers compute from pictures and texts.

Tolerance: 1e-4 on logits of some tens: they are cosines multiplied by the model's scale.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from oracles import import_torchvision
from pictures import photo
from pictures import save as save_picture

import vitrine
from vitrine.checkpoints import load, save
from vitrine.checkpoints.libraries import as_flat_patches
from vitrine.checkpoints.text import load_texts, zero_shot
from vitrine.errors import CheckpointError, ConfigError

import_torchvision()
tokenizers = pytest.importorskip("tokenizers")
WORDS = [
    "[pad]",
    "a",
    "photo",
    "of",
    "cat",
    "dog",
    "an",
    "owl",
    ".",
    "drawing",
    "<|startoftext|>",
    "<|endoftext|>",
]
CLASSES = ["a cat", "a dog", "an owl"]
VISION = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 32, "patch_size": 8,
    "intermediate_size": 48,
}  # fmt: skip
TEXT = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "vocab_size": len(WORDS), "max_position_embeddings": 12, "pad_token_id": 0, "bos_token_id": 10,
    "eos_token_id": 11,
}  # fmt: skip


def word_tokenizer(*, marks: bool) -> Any:
    """A tokenizer of words; CLIP's puts marks around a text."""
    from tokenizers import models, pre_tokenizers, processors

    made = tokenizers.Tokenizer(
        models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[pad]")
    )
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    if marks:
        made.post_processor = processors.TemplateProcessing(
            single="<|startoftext|> $A <|endoftext|>",
            special_tokens=[("<|startoftext|>", 10), ("<|endoftext|>", 11)],
        )
    return made


@pytest.fixture(scope="module", params=["CLIP", "SigLIP", "SigLIP 2 NaFlex"])
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path, bool]:
    """A random model, its folder, and whether it is a CLIP. Files of SigLIP 2 for fixed sizes are SigLIP's."""
    import transformers

    folder = tmp_path_factory.mktemp("model")
    is_clip = request.param == "CLIP"
    torch.manual_seed(0)
    if is_clip:
        config = transformers.CLIPConfig(vision_config=VISION, text_config=dict(TEXT), projection_dim=24)
        model = transformers.CLIPModel(config)
    elif request.param == "SigLIP 2 NaFlex":
        vision = {name: value for name, value in VISION.items() if name != "image_size"}
        config = transformers.Siglip2Config(
            vision_config={**vision, "num_patches": 16}, text_config=dict(TEXT)
        )
        model = transformers.Siglip2Model(config)
        transformers.Siglip2ImageProcessor(patch_size=8, max_num_patches=16).save_pretrained(folder)
    else:
        config = transformers.SiglipConfig(vision_config=VISION, text_config=dict(TEXT))
        model = transformers.SiglipModel(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
        model.logit_scale.fill_(2.0)
    model.eval().save_pretrained(folder)
    word_tokenizer(marks=is_clip).save(str(folder / "tokenizer.json"))
    return model, folder, is_clip


def for_transformers(theirs: Any, images: torch.Tensor) -> dict[str, torch.Tensor]:
    """Give square images, or pictures as Vitrine packs them, the names and shapes that a model takes them in."""
    if type(theirs).__name__ != "Siglip2Model":
        return {"pixel_values": images}
    if images.dim() == 4:
        return as_flat_patches(images, patch=8)
    grids = images[:, 0, :2].long()
    pieces = images[:, 1:].view(len(images), -1, 3, 8, 8).permute(0, 1, 3, 4, 2).flatten(2)
    is_there = torch.arange(pieces.shape[1])[None] < grids.prod(dim=1)[:, None]
    return {"pixel_values": pieces, "pixel_attention_mask": is_there.int(), "spatial_shapes": grids}


def rows_of(texts: list[str], *, is_clip: bool) -> torch.Tensor:
    """Token numbers as the processors of these models pad them."""
    rows = [encoded.ids for encoded in word_tokenizer(marks=is_clip).encode_batch(texts)]
    return torch.tensor([row + [11 if is_clip else 0] * (12 - len(row)) for row in rows])


def test_logits_equal_those_of_transformers_and_survive_saving(
    saved: tuple[Any, Path, bool], tmp_path: Path
) -> None:
    theirs, folder, is_clip = saved
    ours = zero_shot(folder, CLASSES)
    images = torch.randn(3, 3, 32, 32)
    numbers = rows_of([f"a photo of {name}." for name in CLASSES], is_clip=is_clip)
    with torch.inference_mode():
        expected = theirs(input_ids=numbers, **for_transformers(theirs, images)).logits_per_image
        torch.testing.assert_close(ours.model(images), expected, rtol=0, atol=1e-4)
    assert ours.classes == tuple(CLASSES) and expected.std() > 0.1
    save(ours, tmp_path / "classifier")
    again = load(tmp_path / "classifier")
    assert again.classes == tuple(CLASSES)
    with torch.inference_mode():
        torch.testing.assert_close(again.model(images), expected, rtol=0, atol=1e-4)


def test_several_prompts_are_averaged_as_vectors_of_unit_length(saved: tuple[Any, Path, bool]) -> None:
    theirs, folder, is_clip = saved
    prompts = ("a photo of {}.", "a drawing of {}")
    ours = zero_shot(folder, CLASSES, prompts=prompts)
    rows = []
    with torch.inference_mode():
        for name in CLASSES:
            numbers = rows_of([prompt.format(name) for prompt in prompts], is_clip=is_clip)
            found = theirs.get_text_features(input_ids=numbers)
            found = getattr(found, "pooler_output", found)
            mean = torch.nn.functional.normalize(found, dim=-1).mean(dim=0)
            rows.append(mean / mean.norm())
    expected = float(theirs.logit_scale.detach().exp()) * torch.stack(rows)
    torch.testing.assert_close(ours.model.head.weight.detach(), expected, rtol=0, atol=1e-4)  # type: ignore[union-attr]


def test_what_is_no_zero_shot_model_or_no_class_is_refused(
    saved: tuple[Any, Path, bool], tmp_path: Path
) -> None:
    _, folder, _ = saved
    for classes in ([], ["one"], ["cat", "cat"], ["cat", " "]):
        with pytest.raises(ConfigError) as error:
            zero_shot(folder, classes)
        assert error.value.option == "classes"
    with pytest.raises(ConfigError) as error:
        zero_shot(folder, CLASSES, prompts=("a photo",))
    assert error.value.option == "prompts"
    with pytest.raises(CheckpointError, match="no text tower"):
        zero_shot("box", CLASSES)


def test_predict_takes_classes_in_words(saved: tuple[Any, Path, bool], tmp_path: Path) -> None:
    _, folder, _ = saved
    save_picture(tmp_path / "photo.png", photo(3))
    result = vitrine.predict(
        folder, tmp_path / "photo.png", classes="a cat, a dog,an owl", device="cpu", workers=0
    )
    (prediction,) = result.predictions
    classifier = vitrine.zero_shot(folder, CLASSES)
    image = classifier.preprocess((tmp_path / "photo.png").read_bytes())
    with torch.inference_mode():
        expected = classifier.model(image[None]).softmax(dim=-1)[0]
    assert sorted(one.label for one in prediction.answers) == sorted(CLASSES)
    best = prediction.answers[0]
    assert best.label == CLASSES[int(expected.argmax())]
    assert best.probability == pytest.approx(float(expected.max()), abs=1e-4)
    with pytest.raises(ConfigError) as error:
        vitrine.predict(folder, tmp_path / "photo.png", prompts="a photo of {}", device="cpu")
    assert error.value.option == "prompts"


def test_search_finds_pictures_by_words_with_transformers_cosines(
    saved: tuple[Any, Path, bool], tmp_path: Path
) -> None:
    pytest.importorskip("faiss")
    theirs, folder, is_clip = saved
    for number in range(4):
        save_picture(tmp_path / "photos" / f"{number}.png", photo(number))
    vitrine.index(
        folder, tmp_path / "photos", out=tmp_path / "index", workers=0, device="cpu", precision="fp32"
    )
    found = vitrine.search(
        tmp_path / "index", words=["a cat", "an owl"], out=tmp_path / "found", device="cpu"
    )
    preprocess = load(folder).preprocess
    images = torch.stack([preprocess((tmp_path / "photos" / f"{n}.png").read_bytes()) for n in range(4)])
    with torch.inference_mode():
        texts = theirs.get_text_features(input_ids=rows_of(["a cat", "an owl"], is_clip=is_clip))
        pictures = theirs.get_image_features(**for_transformers(theirs, images))
    texts, pictures = (getattr(found, "pooler_output", found) for found in (texts, pictures))
    cosines = torch.nn.functional.normalize(texts, dim=-1) @ torch.nn.functional.normalize(pictures, dim=-1).T
    assert [group.name for group in found.groups] == ["a cat", "an owl"]
    for group, expected in zip(found.groups, cosines, strict=True):
        ours = {Path(match.path).stem: match.cosine for match in group.matches}
        # Vectors of an index are kept in half precision.
        assert [ours[str(n)] for n in range(4)] == pytest.approx(expected.tolist(), abs=2e-3)
        assert list(ours.values()) == sorted(ours.values(), reverse=True)
    assert "a cat" in (tmp_path / "found" / "search.html").read_text()


def test_search_by_words_needs_an_index_of_a_model_with_a_text_tower(tmp_path: Path) -> None:
    pytest.importorskip("faiss")
    save_picture(tmp_path / "photos" / "0.png", photo(0))
    model = vitrine.create_model(
        "ViT", width=16, depth=1, num_heads=1, mlp_width=16, image_size=16, patch_size=8
    )
    save(model, tmp_path / "model")
    vitrine.index(tmp_path / "model", tmp_path / "photos", out=tmp_path / "index", workers=0, device="cpu")
    with pytest.raises(CheckpointError, match="has no text tower"):
        vitrine.search(tmp_path / "index", words="a cat", out=tmp_path / "found", device="cpu")
    with pytest.raises(ConfigError, match="needs pictures or words"):
        vitrine.search(tmp_path / "index", out=tmp_path / "found", device="cpu")


def test_texts_are_lower_cased_and_padded_as_the_processors_of_siglip_do(
    saved: tuple[Any, Path, bool], tmp_path: Path
) -> None:
    _, folder, is_clip = saved
    if is_clip:
        pytest.skip("CLIP's tokenizer does it")
    plain, cased = (load_texts(folder).embed([text]) for text in ("a photo of an owl", "A Photo of an Owl"))
    assert torch.equal(plain, cased)
    shutil.copytree(folder, tmp_path / "other")
    (tmp_path / "other" / "tokenizer_config.json").write_text('{"pad_token": {"content": "owl"}}')
    assert load_texts(tmp_path / "other").tower.config.padding == WORDS.index("owl")
    assert load_texts(folder).tower.config.padding == 0
