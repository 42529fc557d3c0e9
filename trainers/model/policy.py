"""The model that learns: a Hugging Face causal model, whole or with LoRA adapters, and the log-probs of its tokens.

Logits are computed at sampled tokens only and in chunks of them, so that no ``[B, T, V]`` tensor ever exists.
B sequences, T tokens with padding, N sampled tokens, D hidden size, V vocabulary.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rllm_gym.samplers.protocol import WeightUpdate
from trainers.batching import MicroBatch
from trainers.config import ModelConfig
from trainers.model.adapters import with_adapters
from trainers.model.attention import can_share_prefixes, hidden_states
from trainers.model.loading import choose_device, load_causal_lm, load_tokenizer
from trainers.model.token_logprobs import check_head, head_logits


@dataclass(frozen=True, slots=True)
class TokenOutputs:
    """What the model says of N sampled tokens.

    Attributes:
        logp_N: Log-prob of each at the sampling temperature.
        entropy_N: Entropy of the distribution it was drawn from, in nats.
    """

    logp_N: Tensor
    entropy_N: Tensor


class Policy:
    """A causal language model with the weights that are trained.

    Args:
        config: Which model, and how it is tuned.
        temperature: Log-probs are those of the distribution at this temperature, as the sampler's are.
        tokens_per_chunk: Sampled tokens whose logits exist at once.
        reference: Keep what the KL term needs: nothing with LoRA, a frozen copy in full fine-tuning.
        seed: Of the adapters' first weights.

    Attributes:
        model: The model as trained: plain, or wrapped by PEFT.
        tokenizer: Its tokenizer.
        device: Where it lives.
        shares_prompts: Whether sequences may be laid out side by side behind a prompt they share: with plain attention
            over all that came before, and with an implementation that takes a mask.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        temperature: float = 1.0,
        tokens_per_chunk: int = 4096,
        reference: bool = False,
        seed: int = 0,
    ) -> None:
        self.config = config
        self.device = choose_device(config.device)
        self.temperature = temperature
        self.tokens_per_chunk = tokens_per_chunk
        self.tokenizer = load_tokenizer(config.path)
        # Trained weights are float32: small updates vanish in bfloat16. A frozen base may be bfloat16.
        frozen_base = config.tuning == "lora"
        weights = torch.bfloat16 if frozen_base and config.dtype == "bfloat16" else torch.float32
        base = load_causal_lm(config.path, dtype=weights).to(self.device)
        self._reference: Any = None
        if config.tuning == "lora":
            self.model = with_adapters(base, config, seed)
        else:
            self.model = base
            if reference:
                self._reference = copy.deepcopy(base).requires_grad_(False).eval()
        if config.gradient_checkpointing:
            self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            self.model.enable_input_require_grads()
        # Without dropout, in training too: the sampler's log-probs are those of the whole model. transformers
        # checkpoints activations in training mode only.
        self.model.train(config.gradient_checkpointing)
        for module in self.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        check_head(self._plain(), self.device)
        self.shares_prompts = can_share_prefixes(self._plain(), self.device)

    @property
    def parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        """The trained parameters by name, always in the same order."""
        return [(name, parameter) for name, parameter in self.model.named_parameters() if parameter.requires_grad]

    def outputs(self, batch: MicroBatch) -> TokenOutputs:
        """What the model says of each sampled token."""
        return TokenOutputs(*self._logprobs(self._plain(), batch))

    @torch.no_grad()
    def reference_logprobs(self, batch: MicroBatch) -> Tensor:
        """The same log-probs by the reference: adapters off, or the frozen copy."""
        if self._reference is not None:
            return self._logprobs(self._reference, batch)[0]
        with self.model.disable_adapter():
            return self._logprobs(self._plain(), batch)[0]

    def weight_update(self) -> WeightUpdate:
        """What a sampler needs to serve the present weights: the whole model, or the adapters."""
        if self.config.tuning == "full":
            state = self.model.state_dict()
            return WeightUpdate([(name, tensor.detach()) for name, tensor in state.items()], kind="full")
        from peft import get_peft_model_state_dict

        adapters = get_peft_model_state_dict(self.model)
        settings = self.model.peft_config["default"].to_dict()
        return WeightUpdate(
            [(name, tensor.detach()) for name, tensor in adapters.items()], kind="lora", lora_config=settings
        )

    def save(self, folder: Path) -> None:
        """Write what transformers (full) or PEFT (LoRA) loads, with the tokenizer."""
        folder.mkdir(parents=True, exist_ok=True)
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)

    def _plain(self) -> Any:
        return self.model.get_base_model() if self.config.tuning == "lora" else self.model

    def _logprobs(self, model: Any, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        with self._precision():
            hidden_BTD = hidden_states(model, batch.ids_BT, batch.position_BT, batch.end_BT)
            hidden_ND = hidden_BTD[batch.row_N, batch.source_N]
            target_N = batch.ids_BT[batch.row_N, batch.column_N]
            chunks = [
                self._chunk(
                    model,
                    hidden_ND[start : start + self.tokens_per_chunk],
                    target_N[start : start + self.tokens_per_chunk],
                    keep=len(target_N) <= self.tokens_per_chunk,
                )
                for start in range(0, len(target_N), self.tokens_per_chunk)
            ]
        return torch.cat([logp for logp, _ in chunks]), torch.cat([entropy for _, entropy in chunks])

    def _chunk(self, model: Any, hidden_CD: Tensor, target_C: Tensor, *, keep: bool) -> tuple[Tensor, Tensor]:
        """Log-probs and entropies of one chunk. Unless it is the only one, its logits are not kept for the backward
        pass but computed again."""

        def compute(hidden_CD: Tensor, target_C: Tensor) -> tuple[Tensor, Tensor]:
            logp_CV = torch.log_softmax(head_logits(model, hidden_CD).float() / self.temperature, dim=-1)
            logp_C = logp_CV.gather(-1, target_C[:, None]).squeeze(-1)
            return logp_C, -(logp_CV.exp() * logp_CV).sum(-1)

        if keep or not torch.is_grad_enabled():
            return compute(hidden_CD, target_C)
        result: tuple[Tensor, Tensor] = checkpoint(compute, hidden_CD, target_C, use_reentrant=False)
        return result

    @contextlib.contextmanager
    def _precision(self) -> Iterator[None]:
        if self.config.dtype == "bfloat16":
            with torch.autocast(self.device.type, dtype=torch.bfloat16):
                yield
        else:
            yield
