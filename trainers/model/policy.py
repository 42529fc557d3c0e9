"""The trained model: a Hugging Face causal model, fully trained or with LoRA adapters, and the log-probs of its tokens.

Logits are computed only at sampled tokens and in chunks, so that no ``[B, T, V]`` tensor is materialized. B
sequences, T tokens with padding, N sampled tokens, D hidden size, V vocabulary.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rllm_gym.samplers.protocol import WeightUpdate
from trainers.batching import CostModel, MicroBatch
from trainers.config import ConfigError, ModelConfig
from trainers.config.model import shares_base
from trainers.model.adapters import (
    activate,
    adapter_of,
    add_adapters,
    merged_tensors,
    peft_name,
    save_adapters,
)
from trainers.model.attention import enable_tree_attention, hidden_states
from trainers.model.loading import choose_device, load_causal_lm, load_tokenizer, shared_copy
from trainers.model.quantization import dequantized_copy, load_quantized_lm
from trainers.model.token_logprobs import check_head, full_kl, token_logprobs, top_kl
from trainers.model.value_head import ValueHead

if TYPE_CHECKING:
    from trainers.model.endpoint_teacher import EndpointTeacher


@dataclass(frozen=True, slots=True)
class TokenOutputs:
    """The model's outputs at N sampled tokens.

    Attributes:
        logp_N: Log-prob of each token at the sampling temperature.
        entropy_N: Entropy of the distribution it was sampled from, in nats.
        value_N: Value of the state it was sampled in, if there is a value head.
        state_ND: The hidden states that the values were computed from, without gradient.
        teacher_kl_N: KL divergence from the teacher over the vocabulary, if it was asked for.
    """

    logp_N: Tensor
    entropy_N: Tensor
    value_N: Tensor | None = None
    state_ND: Tensor | None = None
    teacher_kl_N: Tensor | None = None


class Policy:
    """A causal language model with its trained weights.

    Args:
        config: Model and tuning options.
        temperature: Sampling temperature; log-probs are those of the distribution at this temperature.
        tokens_per_chunk: Maximum number of sampled tokens whose logits are in memory at once; by default as many as
            fit in a few megabytes.
        reference: Whether to keep the reference model of the KL term: a frozen copy in full fine-tuning, nothing
            additional with adapters.
        seed: Seed of the adapters' initial weights.
        adapters: The sets of weights that are trained, by the names they are served under: ``""`` for the weights
            that roles share, a role's name for its own adapter. Only ``("",)`` in full fine-tuning.

    Attributes:
        model: The trained model: plain, or wrapped by PEFT.
        tokenizer: The model's tokenizer.
        device: The model's device.
        adapted: Whether adapters are trained on a frozen base.
        adapters: Names of the adapters.
        active: The active adapter; see :meth:`activate`.
        value_heads: PPO's value heads by adapter, if they were added. Their parameters are not in
            :attr:`parameters`.
        teacher: The model that takes the place of the reference; see :meth:`add_teacher`.
        endpoint: The same, if it is behind an endpoint.
        shares_prompts: Whether sequences may be packed so that common prefixes are computed once. This requires
            plain causal attention.
        costs: Cost model that decides how sequences are packed.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        temperature: float = 1.0,
        tokens_per_chunk: int | None = None,
        reference: bool = False,
        seed: int = 0,
        adapters: Sequence[str] = ("",),
    ) -> None:
        self.config = config
        self.adapters = tuple(adapters)
        self.active = self.adapters[0]
        self.device = choose_device(config.device)
        self.temperature = temperature
        self.tokens_per_chunk = tokens_per_chunk
        self.tokenizer = load_tokenizer(config.path)
        # Trained weights are float32: small updates vanish in bfloat16. A frozen base may be bfloat16.
        self.adapted = config.tuning != "full"
        half = config.dtype == "bfloat16"
        weights = torch.bfloat16 if self.adapted and half else torch.float32
        if config.tuning == "qlora":
            base = load_quantized_lm(config.path, dtype=weights, device=self.device)
        else:
            base = load_causal_lm(config.path, dtype=weights).to(self.device)
        check_head(base, self.device)
        shared = shares_base(config, gpu=self.device.type == "cuda")
        self._shared_base = shared_copy(base) if shared else None
        self.shares_prompts = enable_tree_attention(base, self.device, torch.bfloat16 if half else weights)
        self.costs = CostModel.of(base.config, self.device, full=not self.adapted)
        self.model = add_adapters(base, config, seed, self.adapters) if self.adapted else base
        for module in self.model.modules():
            if half and hasattr(module, "lora_A"):
                # Autocast converts the inputs; PEFT would first convert them to float32, which is saved for backward.
                module.cast_input_dtype_enabled = False
        self._reference: Any = None
        # What the reference has in place of the trained weights: those of the copy, or adapters that change nothing.
        self._reference_weights: dict[str, Tensor] = {}
        self._reference_moved = False
        if reference and not self.adapted:
            self._reference = copy.deepcopy(self.model).requires_grad_(False).eval()
            self._reference_weights = dict(self._reference.named_parameters())
        elif reference:
            self._reference_weights = {name: parameter.detach().clone() for name, parameter in self.parameters}
        if config.gradient_checkpointing:
            self.model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
            self.model.enable_input_require_grads()
        # Dropout is disabled in training as well: the sampler's log-probs are computed without dropout. Training
        # mode itself is needed, since transformers checkpoints activations only in training mode.
        self.model.train(bool(config.gradient_checkpointing))
        for module in self.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
            if hasattr(module, "attention_dropout"):
                module.attention_dropout = 0.0
        self.value_heads: dict[str, ValueHead] = {}
        self.teacher: Policy | None = None
        self.endpoint: EndpointTeacher | None = None
        self.top_k = 0

    @property
    def parameters(self) -> list[tuple[str, torch.nn.Parameter]]:
        """The trained parameters of all adapters by name, always in the same order."""
        return [(name, parameter) for name, parameter in self.model.named_parameters() if parameter.requires_grad]

    def parameters_of(self, adapter: str) -> list[tuple[str, torch.nn.Parameter]]:
        """Return the parameters of one adapter; in full fine-tuning all parameters."""
        if not self.adapted:
            return self.parameters
        return [(name, parameter) for name, parameter in self.parameters if adapter_of(name) == adapter]

    def activate(self, adapter: str) -> None:
        """Make this adapter active: all further computations use it."""
        if adapter != self.active:
            activate(self.model, adapter)
            self.active = adapter

    @property
    def value_head(self) -> ValueHead | None:
        """The value head of the active adapter."""
        return self.value_heads.get(self.active)

    def outputs(self, batch: MicroBatch, *, entropy_gradient: bool = False, teacher_kl: bool = False) -> TokenOutputs:
        """Compute the outputs at each sampled token. Set ``entropy_gradient`` only if the entropy is differentiated:
        it is slower. With ``teacher_kl`` also the KL divergence from the teacher.
        """
        with self._precision(self.device.type):
            hidden_BTD = self._hidden(self._plain(), batch)
            logp_N, entropy_N = self._of_hidden(self._plain(), hidden_BTD, batch, entropy_gradient)
            kl_N = None
            if teacher_kl:
                kl_N = self._teacher_kl(_at_tokens(hidden_BTD, batch), batch)
        return TokenOutputs(logp_N, entropy_N, *self._values(hidden_BTD, batch), kl_N)

    def _teacher_kl(self, hidden_ND: Tensor, batch: MicroBatch) -> Tensor:
        if self.endpoint is not None:
            ids_NK, teacher_NK = batch.targets["teacher_top"].chunk(2, dim=-1)
            return top_kl(self._plain(), hidden_ND, ids_NK.long(), teacher_NK, self.temperature)
        assert self.teacher is not None, "call add_teacher first"
        other = self.teacher.model
        with torch.no_grad():
            other_ND = _at_tokens(self._hidden(other, batch), batch)
        return full_kl(self._plain(), hidden_ND, other, other_ND, self.temperature, self.top_k)

    @torch.no_grad()
    def values(self, batch: MicroBatch) -> Tensor:
        """Compute the value head's values ``(N,)`` of the states the tokens were sampled in."""
        with self._precision(self.device.type):
            hidden_BTD = self._hidden(self._plain(), batch)
        value_N, _ = self._values(hidden_BTD, batch)
        assert value_N is not None, "call add_value_head first"
        return value_N

    def add_value_head(self) -> ValueHead:
        """Add a value head to the active adapter; its loss does not train the model."""
        width = self._plain().config.get_text_config().hidden_size
        self.value_heads[self.active] = head = ValueHead(width).to(self.device)
        return head

    def add_teacher(self, name: str, top_k: int = 0) -> None:
        """Add a teacher: the folder or hub id of a model, or an endpoint ``http://HOST/v1#NAME``. The KL divergence
        from it compares ``top_k`` tokens, or with 0 the whole vocabulary.

        Raises:
            ConfigError: It has another vocabulary, or the endpoint's log-probs are those of another temperature.
        """
        self.top_k = top_k
        if "://" in name:
            from trainers.model.endpoint_teacher import EndpointTeacher  # needs aiohttp

            if self.temperature != 1.0:
                raise ConfigError(
                    f"algorithm.teacher={name!r} with sampling.temperature={self.temperature:g}: endpoints return the "
                    "log-probs of temperature 1; use sampling.temperature=1, or a local teacher"
                )
            size = self._plain().get_output_embeddings().weight.shape[0]
            self.endpoint = EndpointTeacher(name, top_k, size)
            return
        frozen = ModelConfig(path=name, tuning="full", dtype=self.config.dtype, device=self.config.device)
        self.teacher = Policy(frozen, temperature=self.temperature)
        if self.teacher.tokenizer.get_vocab() != self.tokenizer.get_vocab():
            raise ConfigError(
                f"algorithm.teacher={name!r} has another vocabulary than model.path={self.config.path!r}, so that it "
                "cannot judge its tokens; use a teacher of the same family"
            )
        self.teacher.model.requires_grad_(False)
        if self.config.dtype == "bfloat16":
            self.teacher.model.to(torch.bfloat16)
        self.shares_prompts = self.shares_prompts and self.teacher.shares_prompts

    @torch.no_grad()
    def reference_logprobs(self, batch: MicroBatch) -> Tensor:
        """Compute the log-probs under the reference: the teacher, the base with adapters disabled, or the frozen
        copy."""
        if self.teacher is not None:
            return self.teacher.outputs(batch).logp_N
        if self._reference is not None:
            return self._logprobs(self._reference, batch)[0]
        if self._reference_moved:
            own = {name: parameter.data for name, parameter in self.parameters}
            try:
                self._set_data(self._reference_weights)
                return self._logprobs(self._plain(), batch)[0]
            finally:
                self._set_data(own)
        try:
            with self.model.disable_adapter():
                return self._logprobs(self._plain(), batch)[0]
        finally:
            if len(self.adapters) > 1:  # PEFT reactivates the active adapter and freezes the others
                activate(self.model, self.active)

    @torch.no_grad()
    def move_reference(self, fraction: float) -> None:
        """Move the reference by a fraction of its distance to the current weights."""
        self._reference_moved = True
        for name, parameter in self.parameters:
            self._reference_weights[name].lerp_(parameter, fraction)

    def reference_state(self) -> dict[str, Tensor]:
        """Return the weights of the reference, for a checkpoint; none unless it was moved."""
        return self._reference_weights if self._reference_moved else {}

    @torch.no_grad()
    def load_reference_state(self, state: Mapping[str, Tensor]) -> None:
        self._reference_moved = bool(state and self._reference_weights)
        for name, tensor in self._reference_weights.items() if state else ():
            tensor.copy_(state[name])

    def _set_data(self, values: Mapping[str, Tensor]) -> None:
        for name, parameter in self.parameters:
            parameter.data = values[name]

    def weight_update(self, *, merged: bool = False) -> WeightUpdate:
        """Return what a sampler needs to serve the current weights: the whole model, or the active adapter, under
        its name.

        Args:
            merged: Return the whole model with the adapters merged, also if only adapters are trained; for samplers
                that cannot apply such adapters. The tensors are computed lazily.
        """
        if not self.adapted:
            state = self.model.state_dict()
            return WeightUpdate([(name, tensor.detach()) for name, tensor in state.items()], kind="full")
        if merged:
            return WeightUpdate(merged_tensors(self.model, self.active), kind="full", name=self.active)
        from peft import get_peft_model_state_dict

        name = peft_name(self.active)
        tensors = get_peft_model_state_dict(self.model, adapter_name=name, save_embedding_layers=False)
        return WeightUpdate(
            [(name, tensor.detach()) for name, tensor in tensors.items()],
            kind="lora",
            lora_config=self.model.peft_config[name].to_dict(),
            name=self.active,
        )

    @property
    def shares_base(self) -> bool:
        """Whether an embedded sampler should use :meth:`shared_base` instead of a copy."""
        return self._shared_base is not None

    def shared_base(self) -> Any:
        """Return the frozen base without adapters: new modules over the trained model's own weights, which must not be
        changed. Only if :attr:`shares_base`.
        """
        assert self._shared_base is not None
        return shared_copy(self._shared_base).eval()

    def sampling_model(self) -> Any:
        """Return a copy of the base for an embedded sampler; weight syncs add the adapters. A 4-bit base is
        dequantized to the same weights, so that the sampler samples from exactly the distribution that is trained."""
        if self.config.tuning == "qlora":
            return dequantized_copy(self._plain(), self.config.path)
        dtype = torch.bfloat16 if self.config.dtype == "bfloat16" else torch.float32
        return load_causal_lm(self.config.path, dtype=dtype).to(self.device).eval()

    def write_sampling_base(self, folder: Path) -> str:
        """Return the path of the base for a sampler in another process. It is ``config.path``, except that a 4-bit
        base is written to ``folder`` dequantized, and an adapter is written there merged."""
        if self.config.tuning != "qlora" and not (Path(self.config.path) / "adapter_config.json").is_file():
            return self.config.path
        self.sampling_model().save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        return str(folder)

    def save(self, folder: Path) -> None:
        """Save the model (full) or adapters (LoRA) with the tokenizer, for transformers or PEFT. Each role's adapter
        is saved to a subfolder with the role's name."""
        folder.mkdir(parents=True, exist_ok=True)
        folders = [folder]
        if self.adapted:
            folders = save_adapters(self.model, folder, self.config, self.adapters)
        else:
            self.model.save_pretrained(folder)
        for item in folders:
            self.tokenizer.save_pretrained(item)

    def _plain(self) -> Any:
        return self.model.get_base_model() if self.adapted else self.model

    def _logprobs(self, model: Any, batch: MicroBatch) -> tuple[Tensor, Tensor]:
        with self._precision(model.device.type):
            return self._of_hidden(model, self._hidden(model, batch), batch)

    def _hidden(self, model: Any, batch: MicroBatch) -> Tensor:
        return hidden_states(model, batch.ids_BT, batch.position_BT, batch.end_BT)

    def _of_hidden(
        self, model: Any, hidden_BTD: Tensor, batch: MicroBatch, entropy_gradient: bool = False
    ) -> tuple[Tensor, Tensor]:
        return token_logprobs(
            model,
            _at_tokens(hidden_BTD, batch),
            batch.ids_BT[batch.row_N, batch.column_N],
            temperature=self.temperature,
            tokens_per_chunk=self.tokens_per_chunk,
            entropy_gradient=entropy_gradient,
        )

    def _values(self, hidden_BTD: Tensor, batch: MicroBatch) -> tuple[Tensor | None, Tensor | None]:
        if self.value_head is None:
            return None, None
        state_ND = hidden_BTD[batch.row_N, batch.source_N].detach()
        return self.value_head(state_ND), state_ND

    @contextlib.contextmanager
    def _precision(self, device: str) -> Iterator[None]:
        if self.config.dtype == "bfloat16":
            with torch.autocast(device, dtype=torch.bfloat16):
                yield
        else:
            yield


def _at_tokens(hidden_BTD: Tensor, batch: MicroBatch) -> Tensor:
    """Return the hidden states that predict the sampled tokens."""
    return hidden_BTD.flatten(0, 1).index_select(0, batch.row_N * batch.ids_BT.shape[1] + batch.source_N)
