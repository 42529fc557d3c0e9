"""``sampler.backend=openai``: an endpoint operated by others that accepts token ids and loads LoRA adapters."""

from __future__ import annotations

from dataclasses import dataclass

from rllm_gym.samplers.protocol import Sampler
from trainers.sampler_backends.backend import SamplerBackend, SamplerOptions, SamplerSetup


@dataclass(frozen=True)
class OpenAIOptions(SamplerOptions):
    """An endpoint operated by others (``backend=openai``). Adapters are written to the folder ``adapters`` of the run,
    which the endpoint must be able to read under the same path."""

    backend: str = "openai"
    url: str = ""
    """URL of the endpoint, for example ``http://localhost:8000/v1``. If the base model's name there is not
    ``model.path``, as it is by default in a vLLM server, it follows: ``http://localhost:8000/v1#NAME``. The API key is
    read from OPENAI_API_KEY."""

    def check(self, problems: list[str]) -> None:
        super().check(problems)
        if not self.url:
            problems.append("sampler.url is missing: sampler.backend=openai requires it")


def make(options: OpenAIOptions, setup: SamplerSetup) -> Sampler:
    """Create an :class:`~rllm_gym.samplers.OpenAISampler`."""
    from rllm_gym.samplers.openai_compatible import OpenAISampler

    url, _, model = options.url.partition("#")
    return OpenAISampler(
        model=model or setup.model_path(),
        base_url=url,
        token_ids=True,
        tokenizer=setup.tokenizer,
        adapter_folder=setup.output.resolve() / "adapters",
        parallel=setup.parallel,
    )


OPENAI = SamplerBackend(
    "openai", OpenAIOptions, make, updates=("lora",), packages={"aiohttp": "pip install 'rllm-gym[openai]'"}
)
