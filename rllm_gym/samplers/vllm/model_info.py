"""Facts about a model that a sampler needs without loading it: tokenizer, context, vocabulary and end-of-turn ids."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rllm_gym.chat.tokenizer import load_tokenizer, reply_decoder
from rllm_gym.samplers.protocol import Completion, SamplerError, SamplingRequest
from rllm_gym.samplers.vllm.weight_probe import TOLERANCES

_SEED = 2**63 - 1


@dataclass(frozen=True)
class ModelInfo:
    """Properties of a model, read without loading it.

    Attributes:
        path: Its folder or id.
        tokenizer: Its tokenizer.
        context_length: Maximum tokens of prompt and reply together.
        vocabulary: Number of rows of its embedding.
        eos: Ids that end a reply.
        tied: Whether its language head is its embedding.
        dtype: The type its weights were saved in.
    """

    path: str
    tokenizer: Any
    context_length: int
    vocabulary: int
    eos: frozenset[int]
    tied: bool
    dtype: str

    @classmethod
    def read(
        cls,
        path: str | Path,
        *,
        tokenizer: Any = None,
        context_length: int | None = None,
        eos_token_ids: Sequence[int] | None = None,
    ) -> ModelInfo:
        """Read the facts from the model's files.

        Raises:
            SamplerError: There is no such model.
        """
        from transformers import AutoConfig, GenerationConfig

        try:
            config = AutoConfig.from_pretrained(path)
            tokenizer = tokenizer if tokenizer is not None else load_tokenizer(path)
        except (OSError, ValueError) as error:
            raise SamplerError(f"cannot read a model at {str(path)!r}: {error}") from error
        try:
            generation = GenerationConfig.from_pretrained(path)
        except OSError:
            generation = None
        text = config.get_text_config()
        built_for = getattr(text, "max_position_embeddings", None) or 1 << 20
        eos = set(eos_token_ids or ())
        if eos_token_ids is None:
            for source in (generation, text, tokenizer):
                token_ids = getattr(source, "eos_token_id", None)
                eos.update(
                    token_ids if isinstance(token_ids, list | tuple) else [] if token_ids is None else [token_ids]
                )
        return cls(
            path=str(path),
            tokenizer=tokenizer,
            context_length=min(context_length or built_for, built_for),
            vocabulary=text.vocab_size,
            eos=frozenset(eos),
            tied=bool(getattr(text, "tie_word_embeddings", False)),
            dtype=str(getattr(text, "dtype", None) or "float32").removeprefix("torch."),
        )

    def tolerance(self, dtype: str) -> float:
        """Return the maximum log-prob difference that rounding explains, for an engine computing in ``dtype``."""
        if dtype == "auto":  # vLLM uses half precision for weights saved in float32
            dtype = self.dtype if self.dtype in ("bfloat16", "float16") else "bfloat16"
        return TOLERANCES[dtype]

    def engine_params(self, request: SamplingRequest, index: int) -> dict[str, Any]:
        """Return the sampling parameters under vLLM's names, for its Python class and its HTTP interface.

        Raises:
            ValueError: The prompt is empty, too long, or has ids outside the vocabulary.
            TypeError: The seed is not an int.
        """
        ids, params = request.ids, request.params
        if len(ids) == 0:
            raise ValueError(f"the prompt of request {index} is empty; it needs at least one token")
        if len(ids) >= self.context_length:
            raise ValueError(
                f"the prompt of request {index} has {len(ids)} tokens, which leaves no tokens for a reply "
                f"(context_length={self.context_length}); shorten the conversation"
            )
        if min(ids) < 0 or max(ids) >= self.vocabulary:
            raise ValueError(
                f"the prompt of request {index} has token ids outside 0..{self.vocabulary - 1}; it was made with "
                "another tokenizer than the model's"
            )
        if not isinstance(request.seed, int):
            raise TypeError(f"the seed of request {index} is a {type(request.seed).__name__}; it must be an int")
        return {
            "temperature": params.temperature,
            "top_p": params.top_p,
            "top_k": params.top_k,
            "max_tokens": min(params.max_tokens, self.context_length - len(ids)),
            "seed": request.seed & _SEED,
            "stop": list(params.stop),
            # The end-of-turn ids are passed as stop ids, so that one list decides when a reply ends.
            "stop_token_ids": sorted(self.eos.union(params.stop_token_ids)),
            "ignore_eos": True,
            "logprobs": 0,
            "skip_special_tokens": True,
        }

    def completion(
        self, request: SamplingRequest, ids: Sequence[int], logprobs: Sequence[float], finish: str, version: int
    ) -> Completion:
        """Build the completion of a request.

        Raises:
            SamplerError: A log-prob is NaN, or there is not one log-prob per id.
        """
        if len(ids) != len(logprobs):
            raise SamplerError(f"vLLM returned {len(logprobs)} log-probs for {len(ids)} tokens")
        if any(logprob != logprob for logprob in logprobs):
            raise SamplerError("the model returns NaN log-probs: its weights have diverged; go back to a checkpoint")
        text = reply_decoder(self.tokenizer)(ids)
        cut = min((text.find(stop) for stop in request.params.stop if stop in text), default=None)
        return Completion(tuple(ids), tuple(logprobs), text if cut is None else text[:cut], finish, version)
