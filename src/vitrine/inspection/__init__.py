"""Analysis of a trained model as arrays (arXiv:2010.11929, Figures 6, 7, 10, 11 and 14, and more)."""

from vitrine.inspection.class_gradient import class_attention
from vitrine.inspection.filters import FilterComponents, filter_components
from vitrine.inspection.heads import attention_distance, attention_from
from vitrine.inspection.rollout import roll_out, rollout, upsample
from vitrine.inspection.similarity import layer_similarity, position_similarity
from vitrine.inspection.tokens import TokenNorms, token_colours, token_norms

__all__ = [
    "FilterComponents",
    "TokenNorms",
    "attention_distance",
    "attention_from",
    "class_attention",
    "filter_components",
    "layer_similarity",
    "position_similarity",
    "roll_out",
    "rollout",
    "token_colours",
    "token_norms",
    "upsample",
]
