"""The trained model: a Hugging Face causal model with its adapters, and the log-probs of its tokens."""

from trainers.model.loading import ModelUnusable, choose_device, load_causal_lm, load_tokenizer
from trainers.model.policy import Policy, TokenOutputs
from trainers.model.token_logprobs import head_logits

__all__ = [
    "ModelUnusable",
    "Policy",
    "TokenOutputs",
    "choose_device",
    "head_logits",
    "load_causal_lm",
    "load_tokenizer",
]
