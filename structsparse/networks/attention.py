"""Multi-head attention without its dead heads: the module `SlimAttention`, and the removal of heads."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from structsparse.base.errors import UserError


class SlimAttention(nn.Module):
    """Multi-head attention with only the living heads of an nn.MultiheadAttention; same inputs and outputs.

    The original attention has `full` heads, and `living` has the indices of the living ones. The number of living heads
    times head_dim may be less than embed_dim. If an attention mask has a slice for each original head, the slices of
    dead heads are ignored. The returned attention weights are those of the living heads, or their average."""

    # with these attributes, nn.TransformerEncoderLayer calls `forward` instead of its fast path
    in_proj_weight = None
    in_proj_bias = None
    _qkv_same_embed_dim = False

    def __init__(
        self,
        embed_dim: int,
        head_dim: int,
        living: list[int],
        full: int,
        kdim: int,
        vdim: int,
        bias: bool = True,
        out_bias: bool = True,
        dropout: float = 0.0,
        batch_first: bool = False,
    ):
        super().__init__()
        self.embed_dim, self.head_dim, self.num_heads = embed_dim, head_dim, len(living)
        self.living, self.full, self.dropout, self.batch_first = list(living), full, dropout, batch_first
        width = self.num_heads * head_dim
        self.query = nn.Linear(embed_dim, width, bias)
        self.key = nn.Linear(kdim, width, bias)
        self.value = nn.Linear(vdim, width, bias)
        self.out_proj = nn.Linear(width, embed_dim, out_bias)

    def options(self) -> dict[str, object]:
        """The constructor arguments that make another SlimAttention of the same shape."""
        return {
            "embed_dim": self.embed_dim, "head_dim": self.head_dim, "living": self.living, "full": self.full,
            "kdim": self.key.in_features, "vdim": self.value.in_features, "bias": self.query.bias is not None,
            "out_bias": self.out_proj.bias is not None, "dropout": self.dropout, "batch_first": self.batch_first,
        }  # fmt: skip

    def extra_repr(self) -> str:
        """Text for printing a SlimAttention: numbers of living and original heads, head_dim, batch_first."""
        return f"{self.num_heads} of {self.full} heads, head_dim={self.head_dim}, batch_first={self.batch_first}"

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Output and attention weights; arguments and results are the same as in nn.MultiheadAttention."""
        if is_causal and attn_mask is None:
            raise UserError("is_causal=True only says of what kind attn_mask is; give attn_mask as well")
        if query.is_nested:
            raise UserError("SlimAttention takes padded tensors; set enable_nested_tensor=False in the encoder")
        batched = query.dim() == 3
        turned = batched and not self.batch_first
        if not batched:
            query, key, value = (x.unsqueeze(0) for x in (query, key, value))
        if turned:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        heads = self._split(self.query(query)), self._split(self.key(key)), self._split(self.value(value))
        mask = self._mask(attn_mask, key_padding_mask, query, batched)
        mixed, weights = self._attend(*heads, mask, need_weights)
        output = self.out_proj(mixed.transpose(1, 2).flatten(2))  # [batch, targets, embed_dim]
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if turned:
            output = output.transpose(0, 1)
        if not batched:
            output, weights = output.squeeze(0), None if weights is None else weights.squeeze(0)
        return output, weights

    def _attend(self, query, key, value, mask, need_weights: bool) -> tuple[Tensor, Tensor | None]:
        """Scaled dot-product attention: the output of each head, and the attention weights if need_weights is true."""
        dropout = self.dropout if self.training else 0.0
        if not need_weights:
            return F.scaled_dot_product_attention(query, key, value, mask, dropout), None
        scores = query @ key.transpose(2, 3) / math.sqrt(self.head_dim)
        weights = F.dropout(torch.softmax(scores if mask is None else scores + mask, dim=3), dropout)
        return weights @ value, weights

    def _split(self, x: Tensor) -> Tensor:
        """Split a tensor by attention head: [batch, time, heads * head_dim] -> [batch, heads, time, head_dim]."""
        return x.view(*x.shape[:2], self.num_heads, self.head_dim).transpose(1, 2)

    def _mask(self, attn_mask, key_padding_mask, query: Tensor, batched: bool) -> Tensor | None:
        """The sum of attention mask and padding mask, as numbers to add to the attention scores.

        The result is broadcastable to [batch, heads, targets, sources]. It is None if neither mask is given.
        """
        mask = None
        if attn_mask is not None:
            mask = _added(attn_mask, query)
            if mask.dim() == 3:  # the mask has a slice for each original head
                mask = mask.view(query.shape[0], self.full, *mask.shape[1:])[:, self.living]
        if key_padding_mask is not None:
            padding = _added(key_padding_mask if batched else key_padding_mask.unsqueeze(0), query)[:, None, None]
            mask = padding if mask is None else mask + padding
        return mask


def _added(mask: Tensor, like: Tensor) -> Tensor:
    """An attention mask as numbers to add to scores: -inf where a bool mask is True; a float mask is unchanged."""
    if mask.dtype != torch.bool:
        return mask.to(like.dtype)
    return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill_(mask, -math.inf)


def _by_head(attention: nn.Module) -> tuple[list[Tensor], list[Tensor | None], Tensor]:
    """The weights and biases of an attention, split by head.

    Returns:

    * the weights of query, key and value, each [heads, head_dim, inputs]
    * the biases of query, key and value, each [heads, head_dim] or None
    * the output weights [embed_dim, heads, head_dim]"""
    if isinstance(attention, SlimAttention):
        parts = attention.query, attention.key, attention.value
        weights, biases = [part.weight for part in parts], [part.bias for part in parts]
    else:
        apart = attention.q_proj_weight, attention.k_proj_weight, attention.v_proj_weight
        weights = apart if attention.in_proj_weight is None else attention.in_proj_weight.chunk(3)
        biases = [None] * 3 if attention.in_proj_bias is None else attention.in_proj_bias.chunk(3)
    biases = [None if bias is None else bias.detach() for bias in biases]
    heads = attention.num_heads, attention.head_dim
    output = attention.out_proj.weight.unflatten(1, heads)
    split = [None if bias is None else bias.unflatten(0, heads) for bias in biases]
    return [weight.unflatten(0, heads) for weight in weights], split, output


def dead_heads(attention: nn.Module) -> Tensor:
    """Which heads of an attention are dead, that is, have only zero value weights or only zero output weights."""
    (_, _, value), _, output = _by_head(attention)
    return (value == 0).flatten(1).all(1) | (output == 0).all(2).all(0)


@torch.no_grad()
def without_heads(m: nn.Module, dead: Tensor) -> SlimAttention:
    """A copy of an attention without the dead heads.

    A head with zero value weights outputs a constant, which results from the value bias. The constants of all removed
    heads are added to the output bias of the copy."""
    weights, biases, output = _by_head(m)
    living = (~dead).nonzero()[:, 0]
    bias, out_bias = biases[0] is not None, m.out_proj.bias is not None
    brings = None
    if bias:
        brings = torch.einsum("ehd,hd->e", output[:, dead].double(), biases[2][dead].double())
        out_bias = out_bias or bool((brings != 0).any())
    slimmed = isinstance(m, SlimAttention)
    numbers, full = (m.living, m.full) if slimmed else (range(m.num_heads), m.num_heads)
    slim = SlimAttention(
        m.embed_dim, m.head_dim, [numbers[k] for k in living.tolist()], full, weights[1].shape[2], weights[2].shape[2],
        bias, out_bias, m.dropout, m.batch_first,
    ).to(output)  # fmt: skip
    for layer, weight, given in zip((slim.query, slim.key, slim.value), weights, biases, strict=True):
        layer.weight.copy_(weight[living].flatten(0, 1))
        if bias:
            layer.bias.copy_(given[living].flatten())
    slim.out_proj.weight.copy_(output[:, living].flatten(1))
    if out_bias:
        slim.out_proj.bias.copy_(0.0 if m.out_proj.bias is None else m.out_proj.bias)
        if brings is not None:
            slim.out_proj.bias.copy_(slim.out_proj.bias.double() + brings)
    for new in slim.parameters():
        new.requires_grad_(m.out_proj.weight.requires_grad)
    return slim.train(m.training)
