"""The options of ``rllm-gym eval`` for a model behind an OpenAI-compatible endpoint, and the sampler they configure."""

from __future__ import annotations

import argparse
import os

from rllm_gym.commands.errors import CommandError
from rllm_gym.samplers import Sampler

_KEY = "OPENAI_API_KEY"
# None by default, so that an option that is given but has no effect raises an error.
ENDPOINT_OPTIONS = (
    "api_key_env",
    "token_ids",
    "tokenizer",
    "requests_per_minute",
    "tokens_per_minute",
    "request_timeout",
    "request_retries",
)
MODEL_OPTIONS = ("device", "dtype")


def add_endpoint_arguments(parser: argparse.ArgumentParser) -> None:
    """Add ``--url`` and related options."""
    group = parser.add_argument_group("endpoint options")
    group.add_argument(
        "--url",
        metavar="URL",
        help="OpenAI-compatible endpoint, e.g. http://localhost:8000/v1; --model.path is then the model's name there",
    )
    group.add_argument(
        "--api-key-env", metavar="NAME", help=f"environment variable that contains the API key (default: {_KEY})"
    )
    group.add_argument(
        "--token-ids",
        action="store_true",
        default=None,
        help="send and receive token ids instead of chat messages, as in training (vLLM server); requires --tokenizer",
    )
    group.add_argument(
        "--tokenizer",
        metavar="PATH",
        help="tokenizer of the model, a directory or hub id; used to count tokens for --sampling.context-length",
    )
    group.add_argument(
        "--requests-per-minute", type=float, metavar="N", help="maximum requests per minute (default: no limit)"
    )
    group.add_argument(
        "--tokens-per-minute", type=float, metavar="N", help="maximum tokens per minute (default: no limit)"
    )
    group.add_argument("--request-timeout", type=float, metavar="SECONDS", help="timeout per reply (default: 600)")
    group.add_argument("--request-retries", type=int, metavar="N", help="retries after a temporary error (default: 5)")


def check_endpoint_arguments(options: argparse.Namespace) -> None:
    """Check the endpoint options.

    Raises:
        CommandError: An option is given that has no effect here.
    """
    for name in MODEL_OPTIONS if options.url is not None else ENDPOINT_OPTIONS:
        if getattr(options, name) is not None:
            need = "has no effect with --url" if name in MODEL_OPTIONS else "requires --url"
            option = f"model.{name}" if name in ("device", "dtype") else name.replace("_", "-")
            raise CommandError(f"--{option} {need}")


def endpoint_sampler(options: argparse.Namespace) -> Sampler:
    """Return the sampler for ``--url``.

    Raises:
        CommandError: An option is wrong, or the endpoint returns no token ids where they are required.
    """
    from rllm_gym.samplers.openai_compatible import OpenAISampler
    from rllm_gym.samplers.protocol import SamplerError
    from rllm_gym.samplers.rate_limit import RateLimit

    if options.token_ids and options.tokenizer is None:
        raise CommandError("--token-ids requires --tokenizer, which encodes the prompts")
    key = os.environ.get(options.api_key_env or _KEY)
    if key is None and options.api_key_env is not None:
        raise CommandError(f"--api-key-env {options.api_key_env}: environment variable is not set")
    try:
        return OpenAISampler(
            model=options.model,
            base_url=options.url,
            api_key=key or "",
            token_ids=bool(options.token_ids),
            tokenizer=options.tokenizer,
            rate_limit=RateLimit(options.requests_per_minute, options.tokens_per_minute),
            timeout=600.0 if options.request_timeout is None else options.request_timeout,
            retries=5 if options.request_retries is None else options.request_retries,
            parallel=options.parallel,
        )
    except (ValueError, OSError, SamplerError) as error:
        raise CommandError(str(error)) from error
