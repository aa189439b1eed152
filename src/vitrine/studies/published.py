"""The figures that the paper publishes, by table, and the record that shows one of them beside ours.

Accuracies are percentages. Studies draw them in their charts and list them beside the arms that correspond to them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

I21K_IMAGES, JFT_IMAGES = 14_000_000, 303_000_000

# Accuracy by data set.
TABLE_2 = {
    "ViT-H/14 (JFT)": {
        "ImageNet": 88.55, "ReaL": 90.72, "CIFAR-10": 99.50, "CIFAR-100": 94.55, "Pets": 97.56, "Flowers": 99.68,
        "VTAB": 77.63,
    },
    "ViT-L/16 (JFT)": {
        "ImageNet": 87.76, "ReaL": 90.54, "CIFAR-10": 99.42, "CIFAR-100": 93.90, "Pets": 97.32, "Flowers": 99.74,
        "VTAB": 76.28,
    },
    "ViT-L/16 (I21k)": {
        "ImageNet": 85.30, "ReaL": 88.62, "CIFAR-10": 99.15, "CIFAR-100": 93.25, "Pets": 94.67, "Flowers": 99.61,
        "VTAB": 72.72,
    },
    "BiT-L (R152x4)": {
        "ImageNet": 87.54, "ReaL": 90.54, "CIFAR-10": 99.37, "CIFAR-100": 93.51, "Pets": 96.62, "Flowers": 99.63,
        "VTAB": 76.29,
    },
}  # fmt: skip

# Fine-tuned ImageNet accuracy by model and images of the pre-training set: ImageNet, ImageNet-21k, JFT-300M.
TABLE_5 = {
    "ViT-B/16": {1.28e6: 77.91, 14e6: 83.97, 303e6: 84.15},
    "ViT-B/32": {1.28e6: 73.38, 14e6: 81.28, 303e6: 80.73},
    "ViT-L/16": {1.28e6: 76.53, 14e6: 85.15, 303e6: 87.12},
    "ViT-L/32": {1.28e6: 71.16, 14e6: 80.99, 303e6: 84.37},
    "ViT-H/14": {14e6: 85.13, 303e6: 88.04},
}

# ExaFLOPs of pre-training on JFT and fine-tuned ImageNet accuracy; seven epochs, or 14 where the name says x 2.
TABLE_6: dict[str, dict[str, tuple[float, float]]] = {
    "ViT": {
        "B/32": (55, 80.73), "B/16": (224, 84.15), "L/32": (196, 84.37), "L/16": (783, 86.30),
        "L/16 x 2": (1567, 87.12), "H/14 x 2": (4262, 88.08),
    },
    "ResNet": {
        "R50x1": (50, 77.54), "R101x1": (96, 80.67), "R152x1": (141, 81.88), "R50x2": (199, 82.12),
        "R152x2": (563, 84.97), "R152x2 x 2": (1126, 85.56), "R200x3 x 2": (3306, 87.22),
    },
    "hybrid": {
        "R50+B/32": (106, 84.90), "R50+L/32": (246, 85.68), "R50+B/16": (274, 85.58), "R50+L/16": (859, 86.60),
        "R50+L/16 x 2": (1668, 87.12),
    },
}  # fmt: skip

# Mean fine-tuned accuracy over the data sets, by ResNet and optimizer of pre-training.
TABLE_7 = {"R50, Adam": 89.33, "R50, SGD": 88.79, "R152x2, Adam": 94.01, "R152x2, SGD": 93.72}

# Linear 5-shot accuracy on ImageNet, ViT-B/16, by kind and place of position embeddings.
TABLE_8 = {
    "none": 61.382, "1-D stem": 64.206, "1-D every layer": 63.964, "1-D shared": 64.292, "2-D stem": 64.001,
    "2-D every layer": 64.046, "2-D shared": 64.022, "relative": 64.032,
}  # fmt: skip

# ImageNet accuracy of ViT-B/16: from scratch, after masked patch prediction, after supervised pre-training.
SECTION_4_6 = {"from scratch": 77.9, "masked patches, mean colour": 79.9, "labels": 83.97}

# Accuracy on ObjectNet in the setup of BiT (arXiv:1912.11370, section 3.6).
APPENDIX_D9 = {"ViT-H/14 (JFT)": {"top-1": 61.7, "top-5": 82.1}}


@dataclass(frozen=True, kw_only=True)
class Beside:
    """A figure of the paper and the results of the arm that corresponds to it."""

    label: str
    """The arm, with the paper's model where that differs."""
    paper: float
    """In percent."""
    ours: Sequence[float]
    """One fraction per seed."""
