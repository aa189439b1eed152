"""Pre-training without labels: the paper's own (appendix B.1.2), MAE, DINO, iBOT, MoCo v3, SimCLR, a teacher."""

import dataclasses
from collections.abc import Callable

from vitrine.data.augmenting.multi_crop import MultiCrop
from vitrine.objectives import (
    AutoencoderObjective,
    DinoObjective,
    DistillationObjective,
    IbotObjective,
    MaskedPatchesObjective,
    MocoObjective,
    SimclrObjective,
)
from vitrine.recipes.recipe import Recipe, Views
from vitrine.training.config import TrainingConfig


def masked_patches() -> Recipe:
    """Masked patch prediction as in appendix B.1.2: mean colours of half the patches, a million steps of 4096.

    Expected (the paper, after fine-tuning on ImageNet): ViT-B/16 79.9 %, 2 points above training from scratch;
    most of it after 100k steps. The appendix names neither weight decay nor clipping: none here. Unmeasured here.
    """
    return Recipe(
        name="masked-patches",
        claim="ViT-B/16 then fine-tuned on ImageNet 79.9 % (scratch 77.9) in the paper; unmeasured here",
        objective=MaskedPatchesObjective(),
        model="ViT-B/16",
        size=224,
        training=TrainingConfig(
            optimizer="adamw", lr=2e-4, batch_size=4096, total_steps=1_000_000, warmup_steps=10_000, decay="cosine",
            weight_decay=0.0, clip_norm=None,
        ),
    )  # fmt: skip


def autoencoder() -> Recipe:
    """Masked autoencoder as its authors train it (arXiv:2111.06377, table 8): 1600 epochs, batch 4096.

    Expected (its authors, after fine-tuning on ImageNet): ViT-B/16 83.6 %. Unmeasured here.
    """
    return Recipe(
        name="autoencoder",
        claim="ViT-B/16 then fine-tuned on ImageNet 83.6 % by its authors (arXiv:2111.06377); unmeasured here",
        objective=AutoencoderObjective(),
        model="ViT-B/16",
        model_options={"positions": "sincos_2d"},
        size=224,
        views=Views(area=(0.2, 1.0)),
        epochs=1600,
        training=TrainingConfig(
            # 1.5e-4 for 256 images, in proportion; 40 epochs of ImageNet's 1 281 167 images to warm up.
            optimizer="adamw", lr=1.5e-4 * 4096 / 256, batch_size=4096, warmup_steps=12_512, decay="cosine",
            weight_decay=0.05, betas=(0.9, 0.95), clip_norm=None,
        ),
    )  # fmt: skip


def dino() -> Recipe:
    """Self-distillation as in DINO (arXiv:2104.14294) for ViT-S/16: 300 epochs, batch 1024, 8 small views.

    Expected (its authors, on ImageNet without fine-tuning): 72.8 % by nearest neighbours after 300 epochs, with 10
    small views. Differences: weight decay stays at .1, theirs goes from .04 to .4; small views are half the
    image's side, theirs 96 of 224. Unmeasured here.
    """
    return Recipe(
        name="dino",
        claim="ViT-S/16 on ImageNet 72.8 % by nearest neighbours by its authors (arXiv:2104.14294); unmeasured here",
        objective=DinoObjective(multi_crop=MultiCrop(source_size=336)),
        model="ViT-S/16",
        size=224,
        views=Views(crop="inception", area=(0.5, 1.0), flip=False),
        epochs=300,
        training=TrainingConfig(
            # 5e-4 for 256 images, in proportion; 10 epochs of ImageNet to warm up.
            optimizer="adamw", lr=5e-4 * 1024 / 256, end_lr=1e-6, batch_size=1024, warmup_steps=12_512,
            decay="cosine", weight_decay=0.1, clip_norm=3.0,
        ),
    )  # fmt: skip


def ibot() -> Recipe:
    """Self-distillation with hidden patches as in iBOT (arXiv:2111.07832) for ViT-S/16: 800 epochs, batch 1024.

    Expected (its authors, on ImageNet without fine-tuning): 75.2 % by nearest neighbours. Differences: those of
    `dino`; hidden patches are drawn one by one, theirs in blocks. As theirs, large views cover at least .25 of the
    picture and small ones at most that. Unmeasured here.
    """
    views = MultiCrop(num_local=10, source_size=336, global_area=(0.25, 1.0), local_area=(0.05, 0.25))
    return dataclasses.replace(
        dino(),
        name="ibot",
        claim="ViT-S/16 on ImageNet 75.2 % by nearest neighbours by its authors (arXiv:2111.07832); unmeasured here",
        objective=IbotObjective(multi_crop=views),
        epochs=800,
    )


def moco() -> Recipe:
    """Contrastive learning as in MoCo v3 (arXiv:2104.02057) for ViT-S/16: 300 epochs, batch 4096.

    Expected (its authors, a linear classifier on ImageNet): 73.2 %. Differences: weights are initialised as usual for
    the model, theirs by Xavier's rule; views are cut from the picture at 336 px. Unmeasured here.
    """
    return Recipe(
        name="moco",
        claim="ViT-S/16 on ImageNet 73.2 % by a linear classifier by its authors (arXiv:2104.02057); unmeasured here",
        objective=MocoObjective(multi_crop=MultiCrop(num_local=0, source_size=336, global_area=(0.08, 1.0))),
        model="ViT-S/16",
        model_options={"positions": "sincos_2d"},
        size=224,
        views=Views(crop="none", flip=False),
        epochs=300,
        training=TrainingConfig(
            # 1.5e-4 for 256 images, in proportion; 40 epochs of ImageNet to warm up.
            optimizer="adamw", lr=1.5e-4 * 4096 / 256, batch_size=4096, warmup_steps=12_512, decay="cosine",
            weight_decay=0.1, clip_norm=None,
        ),
    )  # fmt: skip


def simclr() -> Recipe:
    """Contrastive learning in its simple form, SimCLR (arXiv:2002.05709), with MoCo v3's settings for a ViT.

    Expected (MoCo v3's authors, a linear classifier on ImageNet): ViT-S/16 69.0 %. Difference: the colours
    change as in DINO, twice as strongly. Unmeasured here.
    """
    recipe = moco()
    views = MultiCrop(num_local=0, source_size=336, global_area=(0.08, 1.0), colours=2.0)
    return dataclasses.replace(
        recipe,
        name="simclr",
        claim="ViT-S/16 on ImageNet 69.0 % by a linear classifier (arXiv:2104.02057, table 4); unmeasured here",
        objective=SimclrObjective(multi_crop=views),
    )


def distillation() -> Recipe:
    """Learn the features of a teacher, class token and patches, on the same random crops.

    Expected: see docs/guides/without-labels.md. Unmeasured here.
    """
    return Recipe(
        name="distillation",
        claim="unmeasured",
        objective=DistillationObjective(),
        model="ViT-S/16",
        size=224,
        views=Views(area=(0.25, 1.0)),
        epochs=100,
        training=TrainingConfig(
            optimizer="adamw", lr=1e-3, batch_size=512, warmup_steps=1000, decay="cosine", weight_decay=0.05,
        ),
    )  # fmt: skip


WITHOUT_LABELS: dict[str, Callable[[], Recipe]] = {
    "masked-patches": masked_patches,
    "autoencoder": autoencoder,
    "dino": dino,
    "ibot": ibot,
    "moco": moco,
    "simclr": simclr,
    "distillation": distillation,
}
