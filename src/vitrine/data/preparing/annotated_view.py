"""What the loader cuts from a training image: the picture alone, or with what is in it."""

from typing import TypeAlias

from vitrine.data.preparing.box_view import BoxView
from vitrine.data.preparing.mask_view import MaskView
from vitrine.data.preparing.training_view import View

ANNOTATED_VIEWS = (MaskView, BoxView)
AnyView: TypeAlias = View | MaskView | BoxView
"""A view of pictures alone, or of pictures with what is in them."""
