"""Multi-head self-attention, as in ViT (arXiv:2010.11929), appendix A.

Shapes: B images, N tokens, D width, H heads, K = D / H channels per head.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrine.models.axial import Axis
from vitrine.models.choices import Norm
from vitrine.models.config_checks import require_heads
from vitrine.models.dropout import Dropout
from vitrine.models.norms import make_norm
from vitrine.models.positions import LogitBias
from vitrine.models.rotary import Rotation
from vitrine.models.segments import Segments
from vitrine.models.touched import is_plain

# Most attention weights that a written-out layer keeps for its backward pass: 64 MiB in bf16.
MOST_WRITTEN_OUT = 2**25
Places = Tensor | LogitBias | Rotation | Segments | Axis | None
"""Positions for attention: keys of relative positions (2 N - 1, D; appendix D.4), numbers added to the logits, a
rotation, the pictures of a packed sequence, the lines of axial attention, or None."""


class UnbiasedKeys(nn.Linear):
    """Queries, keys and values in one product; the bias of the keys is always zero (DINOv3, EVA)."""

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (B, N, D) to queries, keys and values (B, N, 3 D)."""
        return F.linear(tokens, self.weight, self.effective_bias())

    def effective_bias(self) -> Tensor:
        """Return the bias with zeros for the keys, (3 D,)."""
        q, k, v = self.bias.chunk(3)
        return torch.cat([q, torch.zeros_like(k), v])


class SelfAttention(nn.Module):
    """Mix tokens by attention: fused, or written out when the weights themselves are needed."""

    def __init__(
        self,
        width: int,
        *,
        num_heads: int,
        qkv_bias: bool = True,
        key_bias: bool = True,
        qk_norm: bool = False,
        attention_norm: bool = False,
        norm: Norm = "layer_norm",
        norm_eps: float = 1e-6,
        scale: float | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        require_heads(width, num_heads)
        self.num_heads, self.scale = num_heads, scale
        kind = nn.Linear if key_bias or not qkv_bias else UnbiasedKeys
        self.to_qkv = kind(width, 3 * width, bias=qkv_bias)  # U_qkv of eq. 5
        self.to_out = nn.Linear(width, width)  # U_msa of eq. 8
        head_width = width // num_heads
        self.q_norm = make_norm(norm, head_width, eps=norm_eps) if qk_norm else nn.Identity()
        self.k_norm = make_norm(norm, head_width, eps=norm_eps) if qk_norm else nn.Identity()
        self.norm = make_norm(norm, width, eps=norm_eps) if attention_norm else nn.Identity()
        # Only if used: layers that draw random numbers are numbered in order, and resumed runs need their numbers.
        self.dropout = Dropout(dropout) if dropout else nn.Identity()

    def forward(self, tokens: Tensor, places: Places = None, num_read: int | None = None) -> Tensor:
        """Map tokens (B, N, D) to mixed tokens (B, N, D).

        With `num_read`, queries come from the first `num_read` tokens only: (B, num_read, D).
        """
        q, k, v = self.project(tokens, num_read, places)
        if isinstance(places, Segments):
            return self.join(places.attend(q, k, v, scale=self.scale))
        if self.training and isinstance(self.dropout, Dropout):
            # Fused kernels draw their own random numbers; ours are keyed by image, so the weights are written out.
            return self.join(self.dropout(self.weights_of(q, k, places)) @ v)
        if isinstance(places, Axis):
            lines = attend(places.fold(q), places.fold(k), places.fold(v), scale=self.scale)
            return self.join(places.unfold(lines, num_heads=self.num_heads))
        return self.join(attend(q, k, v, bias=self.added_logits(q, places), scale=self.scale))  # eqs. 6-8

    def join(self, mixed: Tensor) -> Tensor:
        """Map the mixed values of all heads (B, H, N, K) to tokens (B, N, D), with a norm before if there is one."""
        out: Tensor = self.to_out(self.norm(mixed.transpose(1, 2).flatten(2)))  # eq. 8
        return out

    def is_plain(self) -> bool:
        """Whether its layers are unchanged, with the usual scale, no norms and no dropout of weights."""
        return (
            self.scale is None
            and isinstance(self.dropout, nn.Identity)
            and is_plain(self.to_qkv, nn.Linear)
            and is_plain(self.q_norm, nn.Identity)
            and is_plain(self.k_norm, nn.Identity)
            and is_plain(self.norm, nn.Identity)
        )

    def weights(self, tokens: Tensor, places: Places = None) -> Tensor:
        """Return the attention matrix A (B, H, N, N) that `forward` uses; each row sums to one (eq. 6)."""
        q, k, _ = self.project(tokens, places=places)
        return self.weights_of(q, k, places)

    def weights_of(self, q: Tensor, k: Tensor, places: Places = None) -> Tensor:
        """Return softmax(q k^T / sqrt(K)) (eq. 6), including the logits of relative positions, if any."""
        logits = (q * self.factor(q)) @ k.transpose(-2, -1)  # scaling q avoids a second (N, N) matrix
        added = self.added_logits(q, places)
        return (logits if added is None else logits + added).softmax(dim=-1)

    def project(
        self, tokens: Tensor, num_read: int | None = None, places: Places = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries (of the first `num_read` tokens), keys and values, each (B, H, N, K) (eq. 5).

        Queries and keys are normalised, then rotated, if the model does so.
        """
        q, k, v = self.split(tokens, num_read)
        q, k = self.q_norm(q), self.k_norm(k)
        turn = places.rotation if isinstance(places, Segments) else places
        return (turn.turned(q), turn.turned(k), v) if isinstance(turn, Rotation) else (q, k, v)

    def split(self, tokens: Tensor, num_read: int | None) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries of the first `num_read` tokens, keys and values, before norms and rotation."""
        B, N, D = tokens.shape
        if num_read is not None and is_plain(self.to_qkv, nn.Linear):
            weight, bias = self.to_qkv.weight, self.to_qkv.bias
            q_bias, kv_bias = (None, None) if bias is None else (bias[:D], bias[D:])
            q = F.linear(tokens[:, :num_read], weight[:D], q_bias).view(B, num_read, self.num_heads, -1)
            k, v = (
                F.linear(tokens, weight[D:], kv_bias).view(B, N, 2, self.num_heads, -1).permute(2, 0, 3, 1, 4)
            )
            return q.transpose(1, 2), k, v
        q, k, v = (
            self.to_qkv(tokens).view(B, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
        )  # 3 x (B, H, N, K)
        return q if num_read is None else q[:, :, :num_read], k, v

    def factor(self, q: Tensor) -> float:
        """Return the factor on the logits: 1 / sqrt(K), unless the model sets another."""
        return q.shape[-1] ** -0.5 if self.scale is None else self.scale

    def added_logits(self, q: Tensor, places: Places) -> Tensor | None:
        """Return what relative positions or lines add to the logits, (B or 1, H, N, N), or None.

        A rotation is already applied to q and k.
        """
        if isinstance(places, Axis):
            return places.mask(device=q.device).to(q.dtype).expand(1, self.num_heads, -1, -1)
        if isinstance(places, LogitBias):
            return places.values[:, :, : q.shape[2]].to(q.dtype)
        return self.relative_logits(q, places) if isinstance(places, Tensor) else None

    def relative_logits(self, q: Tensor, relative_keys: Tensor) -> Tensor:
        """Return content queries times the keys of their offsets, scaled like content logits: (B, H, N, N).

        If q holds only the first tokens' queries, so does the result.
        """
        R, K = q.shape[-2:]
        N = (relative_keys.shape[0] + 1) // 2
        keys = relative_keys.view(-1, self.num_heads, K).permute(1, 2, 0)  # (H, K, 2 N - 1)
        by_offset = q @ keys.to(q.dtype) * self.factor(q)  # (B, H, R, 2 N - 1)
        position = torch.arange(N, device=q.device)
        # p_q - p_k, counted from the first row of keys
        offset = position[:R, None] - position[None, :] + N - 1
        return by_offset.gather(-1, offset.expand(*q.shape[:-2], R, N))


def attend(
    q: Tensor, k: Tensor, v: Tensor, *, bias: Tensor | None = None, scale: float | None = None
) -> Tensor:
    """Mix v (B, H, N, K) by softmax(q k^T x scale + bias) (eqs. 6-7): fused, or on a CPU in bf16 written out.

    The scale is 1 / sqrt(K) by default.
    """
    num_weights = q.shape[0] * q.shape[1] * q.shape[2] * k.shape[2]
    if q.device.type != "cpu" or q.dtype != torch.bfloat16 or num_weights > MOST_WRITTEN_OUT:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale)
    # torch 2.13's fused kernel for bf16 on CPUs takes 2.6 times as long, forward and backward, at 197 tokens.
    logits = (q * (q.shape[-1] ** -0.5 if scale is None else scale)) @ k.transpose(-2, -1)
    return (logits if bias is None else logits + bias).softmax(dim=-1) @ v


class AttentionPooling(nn.Module):
    """Pool tokens by one learned query, then a residual MLP (multi-head attention pooling)."""

    def __init__(
        self, width: int, *, num_heads: int, mlp: nn.Module, norm: Norm = "layer_norm", norm_eps: float = 1e-6
    ) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.probe = nn.Parameter(torch.empty(1, 1, width))
        self.to_q = nn.Linear(width, width)
        self.to_kv = nn.Linear(width, 2 * width)
        self.to_out = nn.Linear(width, width)
        self.norm = make_norm(norm, width, eps=norm_eps)
        self.mlp = mlp

    def forward(self, tokens: Tensor) -> Tensor:
        """Map tokens (B, N, D) to one vector per image (B, D)."""
        B, N, D = tokens.shape
        q = self.to_q(self.probe).view(1, 1, self.num_heads, -1).transpose(1, 2).expand(B, -1, -1, -1)
        k, v = self.to_kv(tokens).view(B, N, 2, self.num_heads, -1).permute(2, 0, 3, 1, 4)  # 2 x (B, H, N, K)
        pooled = self.to_out(F.scaled_dot_product_attention(q, k, v).reshape(B, D))
        return pooled + self.mlp(self.norm(pooled))
