"""Extensions of vLLM's workers, for its ``worker_extension_cls``; loaded in the engine's process."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor
from vllm.v1.sample.sampler import Sampler

from rllm_gym.runtime.child import die_with_parent
from rllm_gym.samplers.vllm.server_main import SERVER_PID


def _die_with_server() -> None:
    """End this engine process when the server dies.

    A killed server must not leave its engine behind, which holds the model's memory. vLLM itself ends the workers of an
    engine, but not the engine.
    """
    server = int(os.environ.get(SERVER_PID, "0"))
    if not server or server == os.getpid():
        return
    if os.getppid() == server:
        die_with_parent(server)
        return
    try:
        os.kill(server, 0)
    except ProcessLookupError:
        os._exit(1)


_die_with_server()


class WorkerExtension:
    """Further methods of a worker, for ``collective_rpc``."""

    model_runner: Any

    def rllm_gym_report_untruncated_logprobs(self) -> bool:
        """Report log-probs at the request's temperature, before ``top_p`` and ``top_k`` are applied.

        vLLM's own modes report either those at temperature 1 or those after truncation. Return False if the worker has
        another sampler, whose ``processed_logprobs`` must then be used.
        """
        own: Any = getattr(self.model_runner, "sampler", None)
        if type(own) is not Sampler:
            return False
        own.__class__ = _UntruncatedLogprobsSampler
        # "Raw" log-probs are computed from all logits before truncation; here after dividing by the temperature.
        own.logprobs_mode = "raw_logprobs"
        own.topk_topp_sampler.logprobs_mode = "raw_logprobs"
        return True

    def rllm_gym_repack_heads(self) -> None:
        """Repack the language head after ``reload_weights`` on a CPU.

        vLLM's CPU build packs a head's weights for oneDNN. A head that is tied to the embedding is not a separate
        tensor in a checkpoint, so that a reload replaces the embedding and leaves the packed head unchanged.
        """
        from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding

        for module in self.model_runner.get_model().modules():
            if isinstance(module, VocabParallelEmbedding) and hasattr(module, "cpu_linear"):
                module.quant_method.process_weights_after_loading(module)


class _UntruncatedLogprobsSampler(Sampler):  # type: ignore[misc, unused-ignore]
    """vLLM's sampler with log-probs at the request's temperature."""

    _temperature_B: Tensor | None = None

    def forward(self, logits: Tensor, sampling_metadata: Any, *args: Any, **kwargs: Any) -> Any:
        temperature_B = sampling_metadata.temperature
        if temperature_B is not None:
            # 0 is greedy, with unscaled log-probs.
            temperature_B = torch.where(temperature_B < 1e-5, 1.0, temperature_B)
        self._temperature_B = temperature_B
        try:
            return super().forward(logits, sampling_metadata, *args, **kwargs)
        finally:
            self._temperature_B = None

    def compute_logprobs(self, logits: Tensor) -> Tensor:
        """Compute log-probs of sampled tokens at their temperature; of prompts, scored outside ``forward``, at 1."""
        logits_BV = logits.float()
        if self._temperature_B is not None:
            logits_BV = logits_BV / self._temperature_B[:, None]
        return logits_BV.log_softmax(-1)
