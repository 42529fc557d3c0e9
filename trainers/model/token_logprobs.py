"""Log-probs and entropies from hidden states, computed in tiles: no ``[N, V]`` tensor in the forward or backward pass.

N sampled tokens, D hidden size, V vocabulary. A tile is ``[C, W]``: C of the tokens by W of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from trainers.model.loading import ModelUnusable

# A tile should fit into the cache of a CPU, and keep the matrix units of a GPU busy.
TILE_BYTES = {"cpu": 4 << 20, "cuda": 256 << 20}
_LEAST_REST = 1e-6  # rounding of the sum of probabilities in float32
_TOKENS_PER_TILE = {"cpu": 512, "cuda": 4096}


@dataclass(frozen=True, slots=True)
class LogitTransform:
    """How logits are computed from the product of hidden states and head: ``softcap(product * scale) / temperature``.

    Attributes:
        scale: Cohere multiplies by ``logit_scale``, Granite divides by ``logits_scaling``.
        softcap: Gemma's ``softcap * tanh(x / softcap)``; ``None`` for none.
        temperature: Sampling temperature.
    """

    scale: float = 1.0
    softcap: float | None = None
    temperature: float = 1.0

    @classmethod
    def of(cls, config: Any, temperature: float = 1.0) -> LogitTransform:
        """Read the form from the model's configuration."""
        config = config.get_text_config()
        scale = 1.0
        if getattr(config, "logit_scale", None) is not None:
            scale *= config.logit_scale
        if getattr(config, "logits_scaling", None) is not None:
            scale /= config.logits_scaling
        return cls(scale, getattr(config, "final_logit_softcapping", None), temperature)

    def __call__(self, product: Tensor) -> Tensor:
        """Return the logits, divided by the temperature."""
        if self.scale != 1.0:
            product = product * self.scale
        if self.softcap is not None:
            product = torch.tanh(product / self.softcap) * self.softcap
        return product if self.temperature == 1.0 else product / self.temperature


def head_logits(model: Any, hidden_ND: Tensor) -> Tensor:
    """Compute a causal model's logits from its last hidden states, including model-specific scaling."""
    return LogitTransform.of(model.config)(model.get_output_embeddings()(hidden_ND))


def token_logprobs(
    model: Any,
    hidden_ND: Tensor,
    target_N: Tensor,
    *,
    temperature: float = 1.0,
    tokens_per_chunk: int | None = None,
    entropy_gradient: bool = False,
) -> tuple[Tensor, Tensor]:
    """Compute the log-prob of each target and the entropy of its distribution, in nats.

    A plain linear head is computed by :func:`linear_logprobs`. A head that is wrapped by adapters or has hooks is
    called as a module in chunks of tokens, and its logits are recomputed in the backward pass.

    Args:
        model: The causal model, without PEFT's outer wrapper.
        hidden_ND: Last hidden states at the positions that predict the targets.
        target_N: Token ids.
        temperature: Sampling temperature.
        tokens_per_chunk: Maximum number of tokens whose logits are in memory at once; by default the size of a tile.
        entropy_gradient: Whether the entropy will be differentiated; affects only the speed.

    Returns:
        Log-probs ``(N,)`` and entropies ``(N,)``, float32 (float64 for float64 hidden states).
    """
    form = LogitTransform.of(model.config, temperature)
    head = model.get_output_embeddings()
    if type(head) is torch.nn.Linear and not (head._forward_hooks or head._forward_pre_hooks):
        return linear_logprobs(
            hidden_ND,
            head.weight,
            head.bias,
            target_N,
            form=form,
            tokens_per_chunk=tokens_per_chunk,
            entropy_gradient=entropy_gradient,
        )

    def compute(hidden_CD: Tensor, target_C: Tensor) -> tuple[Tensor, Tensor]:
        logits_CV = form(head(hidden_CD))
        logp_CV = torch.log_softmax(logits_CV if logits_CV.dtype == torch.float64 else logits_CV.float(), dim=-1)
        return logp_CV.gather(-1, target_C[:, None]).squeeze(-1), -(logp_CV.exp() * logp_CV).sum(-1)

    chunks = _in_chunks(model, compute, hidden_ND, target_N, tokens_per_chunk=tokens_per_chunk)
    return torch.cat([logp for logp, _ in chunks]), torch.cat([entropy for _, entropy in chunks])


def full_kl(model: Any, hidden_ND: Tensor, other: Any, other_ND: Tensor, temperature: float, top_k: int = 0) -> Tensor:
    """Compute the KL divergence of a model's distribution from another one's over the whole vocabulary ``(N,)``, in
    nats, with the gradient of the former. The logits are computed in chunks, and again in the backward pass.

    Args:
        model: The causal model, without PEFT's outer wrapper.
        hidden_ND: Its last hidden states.
        other: The other model. Its vocabulary may be padded to another size.
        other_ND: The hidden states of the other model.
        temperature: Sampling temperature of both.
        top_k: Compare only this many tokens, those that the other model finds most likely, and all others as one; 0
            for the whole vocabulary.
    """
    size = min(each.get_output_embeddings().weight.shape[0] for each in (model, other))

    def logp(model: Any, hidden_CD: Tensor) -> Tensor:
        return torch.log_softmax(head_logits(model, hidden_CD)[:, :size].float() / temperature, dim=-1)

    def compute(hidden_CD: Tensor, other_CD: Tensor) -> Tensor:
        logp_CV, other_CV = logp(model, hidden_CD), logp(other, other_CD)
        if not top_k:
            return (logp_CV.exp() * (logp_CV - other_CV)).sum(-1)
        other_CK, ids_CK = other_CV.topk(min(top_k, size))
        return _kl_with_rest(logp_CV.gather(-1, ids_CK), other_CK)

    return torch.cat(_in_chunks(model, compute, hidden_ND, other_ND))


def top_kl(model: Any, hidden_ND: Tensor, ids_NK: Tensor, other_NK: Tensor, temperature: float) -> Tensor:
    """As :func:`full_kl` with ``top_k``, of another model of which only these tokens' log-probs are known."""

    def compute(hidden_CD: Tensor, ids_CK: Tensor, other_CK: Tensor) -> Tensor:
        logp_CV = torch.log_softmax(head_logits(model, hidden_CD).float() / temperature, dim=-1)
        return _kl_with_rest(logp_CV.gather(-1, ids_CK), other_CK)

    return torch.cat(_in_chunks(model, compute, hidden_ND, ids_NK, other_NK))


def _kl_with_rest(logp_CK: Tensor, other_CK: Tensor) -> Tensor:
    """Compute the KL divergence over ``K`` tokens and one further outcome for all others. It is at most the one over
    the whole vocabulary.
    """
    rest_C, other_rest_C = ((1 - each.exp().sum(-1)).clamp(min=_LEAST_REST) for each in (logp_CK, other_CK))
    return (logp_CK.exp() * (logp_CK - other_CK)).sum(-1) + rest_C * (rest_C.log() - other_rest_C.log())


def _in_chunks(
    model: Any, compute: Callable[..., Any], *inputs_N: Tensor, tokens_per_chunk: int | None = None
) -> list[Any]:
    """Return the results for chunks of tokens, computed again in the backward pass."""
    tile_bytes = TILE_BYTES.get(inputs_N[0].device.type, TILE_BYTES["cuda"])
    size = max(1, tile_bytes // (4 * model.config.get_text_config().vocab_size))
    size = min(size, tokens_per_chunk or size)
    chunks = []
    for start in range(0, max(1, len(inputs_N[0])), size):
        inputs = [values_N[start : start + size] for values_N in inputs_N]
        if torch.is_grad_enabled():
            chunks.append(checkpoint(compute, *inputs, use_reentrant=False))
        else:
            chunks.append(compute(*inputs))
    return chunks


def linear_logprobs(
    hidden_ND: Tensor,
    weight_VD: Tensor,
    bias_V: Tensor | None,
    target_N: Tensor,
    *,
    form: LogitTransform | None = None,
    tokens_per_chunk: int | None = None,
    tile_bytes: int | None = None,
    entropy_gradient: bool = False,
) -> tuple[Tensor, Tensor]:
    """Compute log-probs and entropies of a linear head; see :func:`token_logprobs`.

    Logits, their softmax and all sums are float32 (float64 for float64 hidden states), under autocast too.

    Args:
        hidden_ND: Hidden states; may be bfloat16.
        weight_VD: Weight of the head.
        bias_V: Bias of the head.
        target_N: Token ids.
        form: Scaling, soft cap and temperature.
        tokens_per_chunk: Maximum number of tokens per tile.
        tile_bytes: Maximum size of a tile in bytes; a few tiles are in memory at a time.
        entropy_gradient: Whether the entropy will be differentiated; affects only the speed.
    """
    kind = hidden_ND.device.type if hidden_ND.device.type in TILE_BYTES else "cuda"
    item = 8 if hidden_ND.dtype == torch.float64 else 4
    tile_rows = max(1, (tile_bytes or TILE_BYTES[kind]) // item)
    tokens = max(1, min(len(hidden_ND), tile_rows, tokens_per_chunk or _TOKENS_PER_TILE[kind], _TOKENS_PER_TILE[kind]))
    words = min(len(weight_VD), max(1, tile_rows // tokens))
    if hidden_ND.is_cuda and torch.is_autocast_enabled("cuda") and hidden_ND.dtype == torch.float32:
        # Float32 weights that are trained: compute their products in half precision, like autocast everywhere else.
        # The sampler's copy of the head is rounded in the same way.
        half = torch.get_autocast_dtype("cuda")
        hidden_ND, weight_VD = hidden_ND.to(half), weight_VD.to(half)
    result: tuple[Tensor, Tensor] = _LinearLogprobs.apply(  # type: ignore[no-untyped-call]
        hidden_ND, weight_VD, bias_V, target_N, form or LogitTransform(), (tokens, words), entropy_gradient
    )
    return result


class _LinearLogprobs(torch.autograd.Function):
    """Online softmax over tiles of the vocabulary (Milakov and Gimelshein 2018), as in attention kernels.

    The gradient of a log-prob with respect to its hidden state is known as soon as the softmax is: ``W[target] -
    softmax @ W`` (times the scalings). If the head is frozen, the forward pass accumulates ``softmax @ W`` in the
    same loop, and the backward pass needs no matrix product: two products in total instead of three. If the head is
    trained or the entropy is differentiated, the backward pass recomputes the tiles.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_VD: Tensor,
        bias_V: Tensor | None,
        target_N: Tensor,
        form: LogitTransform,
        tile: tuple[int, int],
        entropy_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        ahead = needs_hidden and not (needs_weight or needs_bias or entropy_gradient)
        head = _TiledHead(hidden_ND, weight_VD, bias_V, form, tile)
        with torch.autocast(hidden_ND.device.type, enabled=False):
            max_N = head.zeros(len(hidden_ND)).fill_(-1e30)
            sum_N, entropy_sum_N, target_logit_N, target_slope_N = (head.zeros(len(hidden_ND)) for _ in range(4))
            mean_ND = head.zeros(len(hidden_ND), hidden_ND.shape[1]) if ahead else None
            for weight_WD, words, tokens in head.tiles():
                logits_CW, slope_CW = head.logits(tokens, words, weight_WD)
                old_C, sum_C = max_N[tokens], sum_N[tokens]
                new_C = torch.maximum(old_C, logits_CW.amax(-1))
                shrink_C = torch.exp(old_C - new_C)
                place_C = target_N[tokens] - words.start
                inside_C = (place_C >= 0) & (place_C < len(weight_WD))
                place_C = place_C.clamp(0, len(weight_WD) - 1)[:, None]
                _put(target_logit_N[tokens], inside_C, logits_CW.gather(-1, place_C).squeeze(-1))
                if slope_CW is not None:
                    _put(target_slope_N[tokens], inside_C, slope_CW.gather(-1, place_C).squeeze(-1))
                logits_CW.sub_(new_C[:, None])
                exp_CW = logits_CW.exp()
                # Σ exp(x - max)(x - max): rescale the sum to the new maximum, then add this tile.
                entropy_sum_N[tokens] = shrink_C * (
                    entropy_sum_N[tokens] + (old_C - new_C) * sum_C
                ) + torch.linalg.vecdot(exp_CW, logits_CW)
                sum_N[tokens] = sum_C * shrink_C + exp_CW.sum(-1)
                max_N[tokens] = new_C
                if mean_ND is not None:
                    if slope_CW is not None:
                        exp_CW.mul_(slope_CW)
                    head.add_product(mean_ND[tokens].mul_(shrink_C[:, None]), exp_CW, weight_WD)
            log_total_N = max_N + sum_N.log()
            logp_N = target_logit_N - log_total_N
            entropy_N = sum_N.log() - entropy_sum_N / sum_N
            slope_ND = None
            if mean_ND is not None:
                slope_ND = mean_ND.div_(sum_N[:, None]).neg_()
                target_ND = weight_VD[target_N].to(head.dtype)
                slope_ND.add_(target_ND if form.softcap is None else target_ND * target_slope_N[:, None])
                slope_ND.mul_(form.scale / form.temperature)
        ctx.save_for_backward(slope_ND, hidden_ND, weight_VD, bias_V, target_N, log_total_N, entropy_N)
        ctx.form, ctx.tile = form, tile
        return logp_N, entropy_N

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_logp_N: Tensor | None, grad_entropy_N: Tensor | None) -> tuple[Tensor | None, ...]:
        slope_ND, hidden_ND, weight_VD, bias_V, target_N, log_total_N, entropy_N = ctx.saved_tensors
        nothing = (None,) * 4
        if slope_ND is not None and grad_entropy_N is None:
            if grad_logp_N is None:
                return None, None, None, *nothing
            return (slope_ND * grad_logp_N[:, None]).to(hidden_ND.dtype), None, None, *nothing

        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        form: LogitTransform = ctx.form
        head = _TiledHead(hidden_ND, weight_VD, bias_V, form, ctx.tile)
        grad_ND = head.zeros(*hidden_ND.shape) if needs_hidden else None
        grad_VD = head.zeros(*weight_VD.shape) if needs_weight else None
        grad_V = head.zeros(len(weight_VD)) if needs_bias else None
        with torch.autocast(hidden_ND.device.type, enabled=False):
            for weight_WD, words, tokens in head.tiles():
                logits_CW, slope_CW = head.logits(tokens, words, weight_WD)
                logp_CW = logits_CW.sub_(log_total_N[tokens, None])
                grad_CW = logp_CW.exp()
                # d logp / d logit_j = [j is the target] - p_j;  d entropy / d logit_j = -p_j (log p_j + entropy)
                share_C1 = 0.0 if grad_logp_N is None else grad_logp_N[tokens, None]
                if grad_entropy_N is not None:
                    logp_CW.add_(entropy_N[tokens, None]).mul_(grad_entropy_N[tokens, None]).add_(share_C1)
                    grad_CW.mul_(logp_CW.neg_())
                else:
                    grad_CW.mul_(-share_C1)
                if grad_logp_N is not None:
                    place_C = target_N[tokens] - words.start
                    inside_C = (place_C >= 0) & (place_C < len(weight_WD))
                    grad_CW.scatter_add_(
                        -1, place_C.clamp(0, len(weight_WD) - 1)[:, None], (grad_logp_N[tokens] * inside_C)[:, None]
                    )
                if slope_CW is not None:
                    grad_CW.mul_(slope_CW)
                if grad_ND is not None:
                    head.add_product(grad_ND[tokens], grad_CW, weight_WD)
                if grad_VD is not None:
                    head.add_product(grad_VD[words], grad_CW.t(), hidden_ND[tokens])
                if grad_V is not None:
                    grad_V[words] += grad_CW.sum(0)
            rate = form.scale / form.temperature
            for grad in (grad_ND, grad_VD, grad_V):
                if grad is not None and rate != 1.0:
                    grad.mul_(rate)
        return (
            None if grad_ND is None else grad_ND.to(hidden_ND.dtype),
            None if grad_VD is None else grad_VD.to(weight_VD.dtype),
            None if grad_V is None or bias_V is None else grad_V.to(bias_V.dtype),
            *nothing,
        )


class _TiledHead:
    """A linear head and the tiles its logits are computed in."""

    def __init__(
        self, hidden_ND: Tensor, weight_VD: Tensor, bias_V: Tensor | None, form: LogitTransform, tile: tuple[int, int]
    ) -> None:
        self.hidden_ND, self.weight_VD, self.bias_V = hidden_ND, weight_VD, bias_V
        self.form, self.tokens, self.words = form, *tile
        self.dtype = torch.float64 if hidden_ND.dtype == torch.float64 else torch.float32
        # Products of bfloat16 numbers are exact in float32: CUDA multiplies them directly and accumulates in
        # float32, ten times as fast as products of float32 numbers.
        self.mixed = hidden_ND.is_cuda and hidden_ND.dtype == weight_VD.dtype and weight_VD.dtype.itemsize == 2

    def zeros(self, *size: int) -> Tensor:
        return torch.zeros(size, dtype=self.dtype, device=self.hidden_ND.device)

    def tiles(self) -> Iterator[tuple[Tensor, slice, slice]]:
        """Yield each tile: the head's rows, their slice of the vocabulary, and the slice of tokens. Each part of the
        head is converted once."""
        for first in range(0, len(self.weight_VD), self.words):
            words = slice(first, min(first + self.words, len(self.weight_VD)))
            weight_WD = self.weight_VD[words]
            if not self.mixed:
                weight_WD = weight_WD.to(self.dtype)
            for start in range(0, len(self.hidden_ND), self.tokens):
                yield weight_WD, words, slice(start, min(start + self.tokens, len(self.hidden_ND)))

    def logits(self, tokens: slice, words: slice, weight_WD: Tensor) -> tuple[Tensor, Tensor | None]:
        """Compute the logits of a tile divided by the temperature, ``[C, W]``, and with a soft cap its derivative."""
        hidden_CD = self.hidden_ND[tokens]
        if self.mixed:
            logits_CW = torch.mm(hidden_CD, weight_WD.t(), out_dtype=self.dtype)
        else:
            logits_CW = hidden_CD.to(self.dtype) @ weight_WD.t()
        if self.bias_V is not None:
            logits_CW.add_(self.bias_V[words])
        form, slope_CW = self.form, None
        if form.scale != 1.0:
            logits_CW.mul_(form.scale)
        if form.softcap is not None:
            logits_CW.div_(form.softcap).tanh_()
            slope_CW = 1 - logits_CW.square()
            logits_CW.mul_(form.softcap)
        if form.temperature != 1.0:
            logits_CW.div_(form.temperature)
        return logits_CW, slope_CW

    def add_product(self, sum_: Tensor, left: Tensor, right: Tensor) -> None:
        """Compute ``sum_ += left @ right`` in the precision of the sum."""
        if self.mixed:
            sum_.add_(torch.mm(left.to(right.dtype), right, out_dtype=self.dtype))
        else:
            sum_.addmm_(left, right.to(self.dtype))


def _put(values_C: Tensor, where_C: Tensor, new_C: Tensor) -> None:
    values_C.copy_(torch.where(where_C, new_C, values_C))


@torch.no_grad()
def check_head(model: Any, device: torch.device) -> None:
    """Compare our logits with the model's own on a few tokens, to reject model families with an unknown scaling."""
    ids_BT = torch.arange(1, 9, device=device)[None] % model.config.get_text_config().vocab_size
    training = model.training
    model.eval()
    try:
        expected_TV = model(input_ids=ids_BT, use_cache=False).logits[0].float()
        hidden_TD = model.base_model(input_ids=ids_BT, use_cache=False).last_hidden_state[0]
        gap = (head_logits(model, hidden_TD).float() - expected_TV).abs().max().item()
    except (AttributeError, TypeError, KeyError) as error:
        raise ModelUnusable(
            f"{type(model).__name__} has no accessible hidden states and output head: {error}"
        ) from error
    finally:
        model.train(training)
    if not gap <= 1e-2 * max(1.0, expected_TV.abs().max().item()):
        raise ModelUnusable(
            f"{type(model).__name__} computes its logits in an unsupported way: ours differ by {gap:.3g}"
        )
