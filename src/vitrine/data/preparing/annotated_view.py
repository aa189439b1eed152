"""The view of a training image that the loader reads: the picture alone, or with its labels."""

from typing import TypeAlias

from vitrine.data.preparing.box_view import BoxView
from vitrine.data.preparing.instance_view import InstanceView
from vitrine.data.preparing.mask_view import MaskView
from vitrine.data.preparing.training_view import View

ANNOTATED_VIEWS = (MaskView, BoxView, InstanceView)
AnyView: TypeAlias = View | MaskView | BoxView | InstanceView
"""A view of pictures alone, or of pictures with what is in them."""
