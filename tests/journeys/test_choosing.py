"""What `finetune` chooses from: the closed form, a trained head, the end of training, the weights between."""

import numpy as np
import pytest
import torch
from journeys.commandline import inside
from pictures import save

import vitrine
from vitrine.data.sources.opening import open_source
from vitrine.data.sources.splitting import fold_numbers
from vitrine.evaluation.outputs import run_model
from vitrine.evaluation.trust import read_trust
from vitrine.models import create_model
from vitrine.runs import fold_training, run_end, train_run
from vitrine.runs.mixing import between, saved_weights
from vitrine.runs.run_trust import store_trust
from vitrine.runs.solved_head import START_SCALE, softened
from vitrine.training.loop import Run
from vitrine.training.saving import weights_of

pytestmark = pytest.mark.usefixtures("elsewhere")
CLASSES, EACH = ("across", "down", "plain"), 12
OPTIONS = {"device": "cpu", "workers": 0}
# Few passes, as a fold of tiny pictures needs no more; the batch is the smallest.
SHORT = ("epochs=2", "fewest_steps=8", "training.batch_size=16")


def striped(seed: int, kind: str) -> np.ndarray:
    """Draw faint stripes in one of two directions, or none, under noise."""
    generator = np.random.default_rng(seed)
    wave = 110 + 30 * np.sin(np.arange(32) * generator.uniform(0.6, 1.0) + generator.uniform(0, 6))
    rows = {
        "across": np.tile(wave, (32, 1)),
        "down": np.tile(wave[:, None], (1, 32)),
        "plain": np.full((32, 32), 110),
    }
    return (rows[kind][..., None] + generator.normal(0, 25, (32, 32, 3))).clip(0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    folder = tmp_path_factory.mktemp("choosing")
    for kind_number, kind in enumerate(CLASSES):
        for number in range(EACH):
            save(folder / "photos" / kind / f"{number}.png", striped(1000 * kind_number + number, kind))
    torch.manual_seed(0)
    model = create_model(
        "ViT-Ti/16", num_classes=4, image_size=32, depth=2, width=32, num_heads=2, mlp_width=32, patch_size=8
    )
    vitrine.save(model, folder / "model")
    return folder


def test_few_images_are_cross_validated_and_every_image_counts(desk, monkeypatch):
    monkeypatch.setattr(fold_training, "is_gain", lambda losses: True)
    run = desk / "folds"
    result = vitrine.finetune(desk / "photos", model=desk / "model", out=run, set=SHORT, **OPTIONS)
    assert result.num_folds == 3 and result.is_left_out and result.num_validation == len(CLASSES) * EACH
    assert [one.name for one in result.contenders][:2] in (
        ["closed form", "head only"],
        ["head only", "closed form"],
    )
    assert sum(one.is_saved for one in result.contenders) == 1
    assert all(one.num_images == len(CLASSES) * EACH for one in result.contenders)
    assert not (run / "folds").exists()  # the model is saved, so they are not needed
    trust = read_trust(run / "model")
    assert trust.familiarity is not None and trust.held_out is not None
    assert len(trust.held_out.labels) == len(trust.familiarity.held_out) == len(CLASSES) * EACH
    with pytest.raises(vitrine.errors.ConfigError, match="has finished"):
        vitrine.resume(run)


def test_a_run_whose_length_was_asked_for_holds_out_one_part(desk, tmp_path):
    result = vitrine.finetune(
        desk / "photos", model=desk / "model", out=tmp_path / "run", steps=2, batch_size=8, **OPTIONS
    )
    assert result.num_folds == 0 and not result.is_left_out


def test_without_a_gain_in_the_first_fold_the_others_are_not_trained(desk, tmp_path, monkeypatch):
    monkeypatch.setattr(fold_training, "is_gain", lambda losses: False)
    monkeypatch.setattr(train_run, "LONG_SECONDS", 0)
    offered = []
    monkeypatch.setattr(train_run, "notice", lambda text, advice=(): offered.append((text, advice[0].option)))
    run = tmp_path / "run"
    result = vitrine.finetune(desk / "photos", model=desk / "model", out=run, set=SHORT, **OPTIONS)
    assert [option for _, option in offered] == ["fast"] and "five minutes" in offered[0][0]
    assert result.num_folds == 1 and result.best_step == 0
    [saved] = [one for one in result.contenders if one.is_saved]
    assert saved.name in ("closed form", "head only")
    # What is saved is the closed form of all images, calibrated anew: the same answers.
    pictures = [striped(5000 + number, CLASSES[number % 3]) for number in range(6)]
    ours, start = (vitrine.Predictor.open(path).logits(pictures).rows for path in (run, run / "closed_form"))
    assert torch.allclose(ours.softmax(1), start.softmax(1), atol=0.02)


def test_training_starts_from_smaller_logits_and_the_closed_form_on_disk_keeps_its_own(
    desk, tmp_path, monkeypatch
):
    take, heads = Run.take_step, []

    def noted(self, *args, **kwargs):
        heads.append(self.model.head.weight.detach().clone())
        return take(self, *args, **kwargs)

    monkeypatch.setattr(Run, "take_step", noted)
    run = tmp_path / "run"
    vitrine.finetune(
        desk / "photos", model=desk / "model", out=run, steps=2, batch_size=8, hold_out=0.4, **OPTIONS
    )
    solved = saved_weights(run / "closed_form")["head.weight"]
    assert torch.equal(heads[0], START_SCALE * solved)
    fast = vitrine.finetune(
        desk / "photos", model=desk / "model", out=tmp_path / "fast", fast=True, hold_out=0.4, **OPTIONS
    )
    assert torch.allclose(saved_weights(fast.model)["head.weight"], solved, rtol=1e-5)


def test_a_killed_cross_validation_resumes_to_the_same_weights(desk, tmp_path, monkeypatch):
    monkeypatch.setattr(fold_training, "is_gain", lambda losses: True)
    whole = vitrine.finetune(
        desk / "photos", model=desk / "model", out=tmp_path / "whole", set=SHORT, **OPTIONS
    )
    take, count = Run.take_step, iter(range(1000))

    def interrupted(self, *args, **kwargs):
        if next(count) == whole.steps // 2:  # inside the second fold
            self.wants_to_stop = True
        return take(self, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(Run, "take_step", interrupted)
        with pytest.raises(vitrine.errors.VitrineError, match="everything is saved"):
            vitrine.finetune(
                desk / "photos", model=desk / "model", out=tmp_path / "cut", set=SHORT, **OPTIONS
            )
    resumed = vitrine.resume(tmp_path / "cut")
    assert resumed.accuracy == whole.accuracy
    ours, theirs = (saved_weights(folder / "model") for folder in (tmp_path / "cut", tmp_path / "whole"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_the_saved_weights_lie_on_the_line_from_the_closed_form(desk, tmp_path):
    run = tmp_path / "run"
    result = vitrine.finetune(
        desk / "photos", model=desk / "model", out=run, steps=12, batch_size=8, hold_out=0.4, lr=3e-3,
        evaluate_every=6, **OPTIONS,
    )  # fmt: skip
    [saved] = [one for one in result.contenders if one.is_saved]
    assert saved.accuracy == result.accuracy
    first = softened(saved_weights(run / "closed_form"))
    best = run / "checkpoints" / ("last" if result.best_step == 0 else "best")
    last = weights_of(best.with_suffix(".safetensors"))
    kept, share = saved_weights(run / "model"), share_of(saved.name)
    expected = between(first, last, share)
    body = [name for name in expected if not name.startswith("head.")]  # the head is calibrated, too
    assert body and all(torch.allclose(kept[name], expected[name], atol=1e-6) for name in body)
    ratio = kept["head.weight"] / expected["head.weight"]
    assert torch.allclose(ratio, ratio.flatten()[0].expand_as(ratio), rtol=1e-3)


def share_of(name: str) -> float:
    if name in ("closed form", "head only"):
        return 0.0
    return float(name.split(",")[1].split("%", maxsplit=1)[0]) / 100 if "%" in name else 1.0


def test_the_table_shows_what_was_chosen_from(desk, tmp_path):
    done = inside(
        "finetune", desk / "photos", "--model", desk / "model", "--steps", "2", "--batch-size", "8",
        "--device", "cpu", "--workers", "0", "--out", tmp_path / "run",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    table = [line for line in done.stdout.splitlines() if line.startswith("  ")]
    assert any(line.strip().startswith("closed form") for line in table)
    assert any(line.strip().startswith("head only") for line in table)
    assert sum(line.rstrip().endswith("saved") for line in table) == 1


def test_folds_divide_every_class_evenly_and_no_group(desk):
    source = open_source(str(desk / "photos"))
    groups = np.arange(len(source)) // 2 * 2  # neighbours belong together
    fold = fold_numbers(source, folds=3, groups=groups)
    assert all(fold[2 * pair] == fold[2 * pair + 1] for pair in range(len(source) // 2))
    counts = np.array([np.bincount(fold[source.labels == label], minlength=3) for label in range(3)])
    assert counts.sum() == len(source) and counts.min() >= 2
    assert (fold == fold_numbers(source, folds=3, groups=groups)).all()
    assert (fold != fold_numbers(source, folds=3, seed=1, groups=groups)).any()


def test_after_the_last_step_the_training_images_pass_the_model_once(desk, tmp_path, monkeypatch):
    passes, measured_again = [], []

    def counted(model, source, **options):
        passes.append((options.get("what"), len(source)))
        return run_model(model, source, **options)

    def twice(model, splits, **options):
        trust = store_trust(model, splits, **options)
        before = len(passes)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("VITRINE_CACHE", str(tmp_path / "empty"))
            measured_again.append(store_trust(model, splits, **options))
        del passes[before:]
        return trust

    for room in ("evaluation.features", "runs.run_trust"):
        monkeypatch.setattr(f"vitrine.{room}.run_model", counted)
    monkeypatch.setattr(run_end, "store_trust", twice)
    # The rate is high enough for the trained weights to be chosen, not those that the closed form was solved on.
    vitrine.finetune(
        desk / "photos", model=desk / "model", out=tmp_path / "run", steps=12, batch_size=8, hold_out=1 / 3,
        lr=3e-3, **OPTIONS,
    )  # fmt: skip
    num_trained = len(CLASSES) * EACH * 2 // 3
    assert [what for what, count in passes if count == num_trained] in (
        ["Extracting features", "Measuring the classes"],
        ["Extracting features"],  # the closed form was the best: its features are known
    )
    kept, again = read_trust(tmp_path / "run" / "model").familiarity, measured_again[0].familiarity
    assert len(kept.held_out) == num_trained // 2
    # Other batches of the same images: the last bits differ.
    torch.testing.assert_close(kept.held_out, again.held_out, rtol=1e-5, atol=1e-5)
