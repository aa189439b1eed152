"""From the record of a stem to its module."""

from torch import nn

from vitrine.errors import ConfigError
from vitrine.models.cnn_stem import CNNS, CnnStem
from vitrine.models.hmlp_stem import HMlpStem
from vitrine.models.resnet_stem import ResNetStem
from vitrine.models.stem_configs import (
    CnnStemConfig,
    HMlpStemConfig,
    ResNetStemConfig,
    StemConfig,
    TokensToTokenConfig,
)
from vitrine.models.t2t_vit import TokensToToken

HMLP_SHARE = 4  # the stem's width is a quarter of the transformer's


def build_stem(config: StemConfig | None, *, channels: int) -> nn.Module:
    """Create the stem; a plain ViT cuts its patches from the image itself."""
    if config is None:
        return nn.Identity()
    if isinstance(config, ResNetStemConfig):
        return ResNetStem(config, channels=channels)
    if isinstance(config, HMlpStemConfig):
        return HMlpStem(config, channels=channels)
    if isinstance(config, TokensToTokenConfig):
        return TokensToToken(config, channels=channels)
    assert isinstance(config, CnnStemConfig)
    return CnnStem(config, channels=channels)


def stem_named(name: str, *, width: int) -> StemConfig:
    """Return the stem that a word stands for: `hmlp`, `t2t`, `t2t_t` (with transformers) or a registered network."""
    if name == "hmlp":
        return HMlpStemConfig(width=width // HMLP_SHARE)
    if name in ("t2t", "t2t_t"):
        return TokensToTokenConfig(mixing="performer" if name == "t2t" else "transformer")
    if name in CNNS:
        return CNNS[name][1]
    raise ConfigError(
        f"must be one of {', '.join(('hmlp', 't2t', 't2t_t', *CNNS))}, got {name!r}", option="stem"
    )
