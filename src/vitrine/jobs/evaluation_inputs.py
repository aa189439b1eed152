"""The words after `vitrine evaluate`: which kind of model, predictions and data they name."""

from pathlib import Path

from vitrine.checkpoints import Loaded
from vitrine.checkpoints.locating import names_weights
from vitrine.data.sources.mask_folders import mask_folder
from vitrine.data.sources.source import Source
from vitrine.errors import ConfigError
from vitrine.evaluation.test_sets import in_model_classes
from vitrine.evaluation.test_views import TestViews, require_test_views
from vitrine.runtime.progress import notice


def is_file_of_boxes(word: str | None) -> bool:
    """Whether a word names a JSON file."""
    return word is not None and word.endswith(".json") and Path(word).is_file()


def is_folder_of_masks(word: str | None) -> bool:
    """Whether a word names a folder of PNG files without weights, or one whose `masks/` is such a folder."""
    if word is None or not Path(word).is_dir() or names_weights(word):
        return False
    return any(mask_folder(Path(word)).glob("*.png"))


def matched_with(loaded: Loaded, source: Source, *, by_order: bool) -> Source:
    """Give a source the classes of a model, by name or by order."""
    num_outputs = loaded.model.config.num_classes
    matched = in_model_classes(source, loaded.classes, num_outputs=num_outputs, by_order=by_order)
    if loaded.classes is None and not by_order:
        notice("The model has no class names: its outputs are matched with the data's classes by order")
    return matched


def chosen_views(views: str | None, matched: Source, loaded: Loaded) -> TestViews | None:
    """Return the test-time views; refuse them where images have no single class or no common shape."""
    if views is None:
        return None
    if (
        loaded.record.number is not None
        or matched.is_multi_label
        or loaded.preprocess.max_patches is not None
    ):
        raise ConfigError("need one class per image and images of one size", option="views")
    return require_test_views(views)


def require_no_views(views: str | None, task: str) -> None:
    """Refuse test-time views where nothing would use them."""
    if views is not None:
        raise ConfigError(f"go with classifiers, not with {task}", option="views")
