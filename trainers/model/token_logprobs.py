"""Log-probs and entropies from hidden states: in chunks of tokens, so that no ``[B, T, V]`` tensor ever exists."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trainers.model.loading import ModelUnusable


def head_logits(model: Any, hidden_ND: Tensor) -> Tensor:
    """Logits of a causal model from its last hidden states, with the scalings some families apply."""
    config = model.config
    logits_NV: Tensor = model.get_output_embeddings()(hidden_ND)
    if getattr(config, "logit_scale", None) is not None:  # Cohere
        logits_NV = logits_NV * config.logit_scale
    if getattr(config, "logits_scaling", None) is not None:  # Granite
        logits_NV = logits_NV / config.logits_scaling
    if getattr(config, "final_logit_softcapping", None) is not None:  # Gemma
        logits_NV = torch.tanh(logits_NV / config.final_logit_softcapping) * config.final_logit_softcapping
    return logits_NV


@torch.no_grad()
def check_head(model: Any, device: torch.device) -> None:
    """Compare our logits with the model's own on a few tokens: a family with an unknown scaling is refused."""
    ids_BT = torch.arange(1, 9, device=device)[None] % model.config.get_text_config().vocab_size
    training = model.training
    model.eval()
    try:
        expected_TV = model(input_ids=ids_BT, use_cache=False).logits[0].float()
        hidden_TD = model.base_model(input_ids=ids_BT, use_cache=False).last_hidden_state[0]
        gap = (head_logits(model, hidden_TD).float() - expected_TV).abs().max().item()
    except (AttributeError, TypeError, KeyError) as error:
        raise ModelUnusable(f"{type(model).__name__} has no hidden states and output head to read: {error}") from error
    finally:
        model.train(training)
    if not gap <= 1e-2 * max(1.0, expected_TV.abs().max().item()):
        raise ModelUnusable(
            f"{type(model).__name__} computes its logits in a way this trainer does not know: they differ by {gap:.3g}"
        )
