"""The model that learns: a Hugging Face causal model, whole or with LoRA adapters, and the log-probs of its tokens.

Logits are computed at sampled tokens only and in chunks of them, so that no ``[B, T, V]`` tensor ever exists.
B sequences, T tokens with padding, N sampled tokens, D hidden size, V vocabulary.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForCausalLM, AutoTokenizer

from rllm_gym.samplers.protocol import WeightUpdate
from trainers.batch import MicroBatch
from trainers.config import ConfigError, ModelConfig


class ModelUnusable(ConfigError):
    """The model cannot be loaded, or computes its logits in a way this trainer does not know."""


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
            self.model = _with_adapters(base, config, seed)
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
        _check_head(self._plain(), self.device)
        self.shares_prompts = _can_share_prompts(self._plain(), self.device)

    @property
    def parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        """The trained parameters by name, always in the same order."""
        return [(name, parameter) for name, parameter in self.model.named_parameters() if parameter.requires_grad]

    def logprobs(self, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        """Log-prob of each sampled token, and the entropy of the distribution it was drawn from: ``(N,)`` each."""
        return self._logprobs(self._plain(), batch)

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
            hidden_BTD = _hidden(model, batch.ids_BT, batch.position_BT, batch.seen_BTT)
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


def choose_device(name: str) -> torch.device:
    """``auto`` is a GPU where there is one.

    Raises:
        ModelUnusable: There is no such device.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise ModelUnusable(f"model.device={name!r} cannot be used ({error}); `auto` takes what there is") from error
    return device


def load_causal_lm(path: str, *, dtype: torch.dtype) -> Any:
    """A causal language model from a folder or the hub; an adapter folder is merged into its base.

    Raises:
        ModelUnusable: It cannot be loaded.
    """
    try:
        if (Path(path) / "adapter_config.json").is_file():
            from peft import AutoPeftModelForCausalLM

            return AutoPeftModelForCausalLM.from_pretrained(path, dtype=dtype).merge_and_unload()
        return AutoModelForCausalLM.from_pretrained(path, dtype=dtype)
    except (OSError, ValueError) as error:
        raise ModelUnusable(f"model.path={path!r} cannot be loaded as a causal language model: {error}") from error


def load_tokenizer(path: str) -> Any:
    """The tokenizer of a folder or hub id.

    Raises:
        ModelUnusable: There is none, or it has no chat template.
    """
    try:
        tokenizer = AutoTokenizer.from_pretrained(path)
    except (OSError, ValueError) as error:
        raise ModelUnusable(f"model.path={path!r} has no tokenizer that can be loaded: {error}") from error
    if not getattr(tokenizer, "chat_template", None):
        raise ModelUnusable(
            f"the tokenizer of model.path={path!r} has no chat template, so conversations cannot be written as it was "
            "taught; use the instruction-tuned model, or set tokenizer.chat_template and save the tokenizer"
        )
    return tokenizer


def _with_adapters(base: Any, config: ModelConfig, seed: int) -> Any:
    from peft import LoraConfig, get_peft_model

    folder = Path(config.path)
    if (folder / "adapter_config.json").is_file():
        raise ModelUnusable(
            f"model.path={config.path!r} is itself an adapter, and a new one on top of it would fit no model on disk; "
            "write the merged model first (peft: AutoPeftModelForCausalLM.from_pretrained(...).merge_and_unload()"
            ".save_pretrained(...)), or use model.tuning=full"
        )
    targets: str | list[str] = config.lora.targets
    if config.lora.targets != "all-linear":
        targets = [name.strip() for name in config.lora.targets.split(",")]
    settings = LoraConfig(
        r=config.lora.rank,
        lora_alpha=config.lora.alpha,  # PEFT says int and divides like a float
        target_modules=targets,
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )
    # PEFT writes this name into the adapter, which should find its base from any working directory.
    base.name_or_path = str(folder.resolve()) if folder.is_dir() else config.path
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return get_peft_model(base, settings)
    except ValueError as error:
        raise ModelUnusable(f"model.lora.targets={config.lora.targets!r} does not fit the model: {error}") from error


def _hidden(model: Any, ids_BT: Tensor, position_BT: Tensor | None, seen_BTT: Tensor | None) -> Tensor:
    """The last hidden states ``[B, T, D]``."""
    layout: dict[str, Any] = {}
    if seen_BTT is not None:
        layout = {"attention_mask": seen_BTT[:, None], "position_ids": position_BT}
    states: Tensor = model.base_model(input_ids=ids_BT, use_cache=False, **layout).last_hidden_state
    return states


@torch.no_grad()
def _can_share_prompts(model: Any, device: torch.device) -> bool:
    """Try it: two continuations of a prompt, side by side and each alone. Some models look at positions in their own
    way, have windows or a recurrent state, or use attention that takes no mask: those compute something else."""
    if getattr(model.config, "_attn_implementation", None) != "sdpa":
        return False
    vocabulary = model.config.get_text_config().vocab_size
    window = getattr(model.config.get_text_config(), "sliding_window", None)
    if window is not None and getattr(model.config.get_text_config(), "use_sliding_window", True):
        return False
    prompt, ends = [3, 5, 7, 9, 11], ([13, 15], [17, 19, 21])
    ids_BT = torch.tensor([[*prompt, *ends[0], *ends[1]]], device=device) % vocabulary
    position_BT = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 5, 6, 7]], device=device)
    seen_BTT = torch.ones(1, 10, 10, dtype=torch.bool, device=device).tril()
    seen_BTT[:, 7:, 5:7] = False
    try:
        together_TD = _hidden(model, ids_BT, position_BT, seen_BTT)[0]
    except (TypeError, ValueError, RuntimeError):
        return False
    alone_TD = _hidden(model, torch.tensor([[*prompt, *ends[1]]], device=device) % vocabulary, None, None)[0]
    gap = (together_TD[7:] - alone_TD[5:]).abs().max()
    return bool(gap <= 1e-2 * alone_TD.abs().max().clamp(min=1.0))


@torch.no_grad()
def _check_head(model: Any, device: torch.device) -> None:
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
