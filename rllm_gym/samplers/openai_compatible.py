"""A sampler for any OpenAI-compatible endpoint: text by chat, or token ids with log-probs where the endpoint has them.

This module contains the modes, retries, limits and waiting. ``openai_http`` sends requests, ``openai_responses`` parses
replies.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import random
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from rllm_gym.argument_checks import check_int, check_number
from rllm_gym.chat.tokenizer import load_tokenizer
from rllm_gym.samplers import openai_responses as responses
from rllm_gym.samplers.client_loop import ClientLoop
from rllm_gym.samplers.openai_adapters import ServedAdapters
from rllm_gym.samplers.openai_http import Endpoint, HttpResponse, RequestRefused
from rllm_gym.samplers.protocol import (
    Completion,
    Probe,
    SamplerError,
    SamplingParams,
    SamplingRequest,
    WeightUpdate,
    unknown_weights,
)
from rllm_gym.samplers.rate_limit import RateLimit, RateLimiter

Read = TypeVar("Read")
_Asked = TypeVar("_Asked")

_PROBE_PROMPT = (1, 2, 3)
_PROBE_SECONDS = 120.0  # a server that has just started compiles on its first request
_LIST_SECONDS = 10.0


class OpenAISampler:
    """Samples from an OpenAI-compatible endpoint.

    **Chat** (``token_ids=False``): ``{base_url}/chat/completions`` with messages; works with any endpoint. Replies are
    text, so episodes can be evaluated but not trained on. **Token ids** (``token_ids=True``):
    ``{base_url}/completions`` with the exact ids of the conversation, as vLLM and similar servers accept them; replies
    carry ids and log-probs. A probe request checks, when the sampler is made, that the endpoint supports this, and of
    which distribution its log-probs are.

    A temporary error (429, 5xx, no connection, an interrupted reply) is retried after a growing pause, or after the
    pause that ``Retry-After`` asks for, during which no other request is sent either. Prompts that do not fit the model
    return a completion with ``finish_reason="context_length"`` rather than an error. Connections are kept. The key is
    sent to this host alone, never through a redirect, and appears in no message.

    Args:
        model: Name of the model at the endpoint.
        base_url: Such as ``"http://localhost:8000/v1"``.
        api_key: ``None`` reads the environment variable ``OPENAI_API_KEY``; ``""`` sends none.
        token_ids: ``True`` requires token ids and log-probs, ``None`` uses them where the endpoint returns them (see
            ``returns_tokens``), ``False`` uses chat.
        tokenizer: The model's tokenizer, or its folder: the engine uses it to turn messages into ids and to count
            tokens.
        context_length: Maximum tokens of prompt and reply together; ``None``: what the endpoint reports, with token
            ids.
        adapter_folder: A folder that the endpoint can read too: :meth:`sync_weights` writes adapters there and
            requests that they be loaded (vLLM with ``--enable-lora`` and ``VLLM_ALLOW_RUNTIME_LORA_UPDATING=1``). Needs
            ``token_ids=True``.
        probe_tolerance: Maximum difference between log-probs of a loaded adapter and the trainer's, where the update
            has a probe: what rounding of the endpoint's dtype explains (bfloat16: about 0.25).
        extra_body: Fields added to every request; ``None`` as a value leaves a field out (``{"seed": None}`` for
            endpoints that accept no seeds).
        rate_limit: Maximum requests and tokens per minute. Limits that replies report (``x-ratelimit-*``) are always
            respected.
        timeout: Seconds that one attempt may take.
        connect_timeout: Seconds to connect.
        silence_timeout: Seconds without a byte; ``None`` for no limit but ``timeout`` (nothing arrives while a reply is
            computed).
        retries: Further attempts after a temporary error.
        max_pause: Longest pause, in seconds, that an endpoint may ask for; a longer one is an error.
        parallel: Maximum number of concurrent requests.
        max_reply_bytes: Maximum size of a reply in bytes.

    Raises:
        ValueError: An argument is out of range or has no effect, or ``base_url`` is not http or https.
        SamplerError: ``token_ids`` is ``True`` and the endpoint returns none, cannot be reached, or refuses.
    """

    def __init__(
        self,
        *,
        model: str,
        base_url: str = "https://api.openai.com/v1",
        api_key: str | None = None,
        token_ids: bool | None = False,
        tokenizer: Any = None,
        context_length: int | None = None,
        adapter_folder: str | os.PathLike[str] | None = None,
        probe_tolerance: float = 1e-3,
        extra_body: Mapping[str, Any] | None = None,
        rate_limit: RateLimit | None = None,
        timeout: float = 600.0,
        connect_timeout: float = 10.0,
        silence_timeout: float | None = None,
        retries: int = 5,
        max_pause: float = 120.0,
        parallel: int = 64,
        max_reply_bytes: int = 64 * 2**20,
    ) -> None:
        for name, value in (
            ("timeout", timeout),
            ("connect_timeout", connect_timeout),
            ("silence_timeout", timeout if silence_timeout is None else silence_timeout),
            ("probe_tolerance", probe_tolerance),
        ):
            check_number(name, value, above=0.0)
        check_int("parallel", parallel)
        check_int("max_reply_bytes", max_reply_bytes)
        check_int("retries", retries, 0)
        check_number("max_pause", max_pause, least=0.0)
        if not model:
            raise ValueError("model='' is empty; give one of the names that the endpoint's /models lists")
        if adapter_folder is not None and token_ids is not True:
            raise ValueError("adapter_folder is for training, which needs token_ids=True")
        key = api_key if api_key is not None else os.environ.get("OPENAI_API_KEY", "")
        self._endpoint = Endpoint(
            base_url,
            key.strip(),
            connect_timeout=connect_timeout,
            silence_timeout=silence_timeout,
            max_bytes=max_reply_bytes,
        )
        self.model = model
        self.tokenizer = _load_tokenizer(tokenizer)
        self.context_length = context_length
        self.returns_tokens = False
        self.no_tokens_reason = "chat completions return no token ids; create the sampler with token_ids=True"
        """Why replies have no token ids and log-probs; ``""`` if they have them."""
        self._logprobs: responses.LogprobMode = "unknown"
        self._probe_tolerance = probe_tolerance
        self._extra = dict(extra_body or {})
        self._timeout, self._retries, self._max_pause = timeout, retries, max_pause
        self._rate_limiter = RateLimiter(rate_limit or RateLimit())
        self._length_field = "max_tokens"
        self._jitter = random.Random()
        self._slots = asyncio.Semaphore(parallel)
        self._adapters = None if adapter_folder is None else ServedAdapters(model, adapter_folder)
        self._loop = ClientLoop(self, "openai-sampler", self._endpoint.close)
        if token_ids is not False:
            try:
                self._loop.wait(self._probe(must=token_ids is True))
            except BaseException:
                self._loop.close()
                raise

    @property
    def weight_version(self) -> int:
        """Number of the last weight sync; 0 before the first."""
        return self._adapters.version if self._adapters is not None else 0

    async def sample(self, requests: Sequence[SamplingRequest]) -> list[Completion]:
        """Sample one reply per request. See :class:`~rllm_gym.samplers.Sampler`.

        A prompt that the endpoint rejects as too long gives an empty completion with
        ``finish_reason="context_length"``.

        Raises:
            ValueError: A request names weights that were never loaded; with token ids: a prompt is empty or does not
                fit. Nothing was sampled.
            SamplerError: The endpoint refuses, cannot be reached, or returns an invalid reply.
        """
        for index, request in enumerate(requests):
            self._serving(request.weights)
            self._check(index, request)
        return await self._loop.call(_together(self._one, requests))

    async def sync_weights(self, update: WeightUpdate) -> int:
        """Write an adapter to ``adapter_folder``, have the endpoint load it, and return the new version.

        Each version has its own name at the endpoint, so that a reply cannot come from another version than it reports.
        Named adapters stay loaded together; the endpoint's ``--max-loras`` sets how many of them share a
        batch.

        Raises:
            SamplerError: There is no ``adapter_folder``, the update is not a LoRA adapter, the endpoint refuses it, or
                what it then serves does not agree with the update's probe.
        """
        if self._adapters is None:
            raise SamplerError(
                "this sampler cannot load weights without adapter_folder: give a folder that the endpoint can read, "
                "and run the endpoint with runtime loading of adapters; or train with the torch or vLLM sampler"
            )
        self._adapters.check(update)
        return await self._loop.call(self._load(self._adapters, update))

    async def _load(self, adapters: ServedAdapters, update: WeightUpdate) -> int:
        tensors = list(update.tensors)
        if not tensors:  # an adapter that changes nothing is the base
            await self._unload(adapters.commit(update.name, base=True))
            return adapters.version
        path, body = await asyncio.to_thread(adapters.write, replace(update, tensors=tensors))
        try:
            await self._ask(path, body, 0, read=responses.check_ok)
            if update.probe is not None:
                await self._check_probe(update.probe)
        except RequestRefused as refused:
            raise SamplerError(
                f"{self._endpoint.url}{path}: {self._endpoint.clean(str(refused))} (it must be able to read "
                f"{body['lora_path']}, and vLLM needs --enable-lora, --max-lora-rank and "
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1)"
            ) from None  # the cause may quote the key
        await self._unload(adapters.commit(update.name))
        return adapters.version

    async def drop(self, name: str) -> None:
        """Have the endpoint unload the adapter that was loaded under a name. None of its replies should be in progress.

        Raises:
            ValueError: There is none of that name, or it is ``""``.
            SamplerError: The endpoint refuses.
        """
        if self._adapters is None:
            raise unknown_weights(name, ())
        await self._loop.call(self._unload(self._adapters.drop(name)))

    async def _unload(self, models: Sequence[str]) -> None:
        assert self._adapters is not None
        for model in models:
            try:
                await self._ask("/unload_lora_adapter", {"lora_name": model}, 0, read=responses.check_ok)
            except RequestRefused as refused:
                message = self._endpoint.clean(str(refused))
                raise SamplerError(
                    f"{self._endpoint.url} did not unload {model!r}: {message}"
                ) from None  # the cause may quote the key
            await asyncio.to_thread(self._adapters.remove, model)

    async def _check_probe(self, probe: Probe) -> None:
        """Compare the log-probs of the adapter that was just loaded with the trainer's.

        Raises:
            SamplerError: They differ: the endpoint serves other weights.
        """
        from rllm_gym.samplers.vllm.weight_probe import compare

        assert self._adapters is not None
        body = {"model": self._adapters.pending, "prompt": list(probe.ids), "max_tokens": 1, "prompt_logprobs": 0}

        def read(response: HttpResponse) -> list[float]:
            return responses.prompt_logprobs(responses.parse(response), probe.ids)

        logprobs = await self._ask("/completions", self._with_extra(body), len(probe.ids) + 1, read=read)
        compare(probe, logprobs, self._probe_tolerance, "after a weight sync")

    def prompt_logprobs(self, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return for each prompt the log-probs of its tokens except the first, at temperature 1. Blocks.

        The endpoint must return ``prompt_logprobs`` of prompts of token ids, as vLLM does.

        Raises:
            SamplerError: It does not, refuses, or cannot be reached.
        """
        return self._of_prompts(prompts, 0, responses.prompt_logprobs)

    def prompt_top_logprobs(self, prompts: Sequence[Sequence[int]], top: int) -> list[list[list[tuple[int, float]]]]:
        """Return for each token of each prompt except the first the ``top`` most likely ids and their log-probs there.

        As :meth:`prompt_logprobs`. vLLM returns at most 20 unless it is started with ``--max-logprobs``.
        """
        return self._of_prompts(prompts, top, functools.partial(responses.prompt_top_logprobs, top=top))

    def _of_prompts(
        self, prompts: Sequence[Sequence[int]], top: int, read: Callable[[Any, Sequence[int]], Read]
    ) -> list[Read]:
        async def one(ids: Sequence[int]) -> Read:
            body = {"model": self.model, "prompt": list(ids), "max_tokens": 1, "prompt_logprobs": top}
            try:
                return await self._ask(
                    "/completions",
                    self._with_extra(body),
                    len(ids) + 1,
                    read=lambda response: read(responses.parse(response), ids),
                )
            except RequestRefused as refused:
                message = self._endpoint.clean(str(refused))
                raise SamplerError(f"{self._endpoint.url}/completions: {message}") from None  # it may quote the key

        return self._loop.wait(_together(one, prompts))

    async def release(self, conversation: str) -> None:
        """Do nothing: the client keeps no cache."""

    async def close(self) -> None:
        """Cancel requests in progress and close all connections. Safe to call twice."""
        await asyncio.to_thread(self._loop.close)

    async def __aenter__(self) -> OpenAISampler:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # One request

    def _serving(self, weights: str) -> tuple[str, int]:
        """Return the endpoint's name for these weights, and their version.

        Raises:
            ValueError: They were never loaded.
        """
        if self._adapters is not None:
            return self._adapters.serving(weights)
        if weights:
            raise unknown_weights(weights, ())
        return self.model, 0

    def _check(self, index: int, request: SamplingRequest) -> None:
        if not self.returns_tokens:
            if not request.messages:
                raise SamplerError("this sampler needs messages, but the request has only token ids")
            return
        length = len(request.ids)
        if length == 0:
            raise ValueError(f"the prompt of request {index} is empty; it needs at least one token")
        if self.context_length is not None and length >= self.context_length:
            raise ValueError(
                f"the prompt of request {index} has {length} tokens, which leaves no tokens for a reply "
                f"(context_length={self.context_length}); shorten the conversation"
            )
        reason = _logprob_mismatch(request.params, self._logprobs)
        if reason:
            raise SamplerError(f"{self._endpoint.url}: {reason}")

    async def _one(self, request: SamplingRequest) -> Completion:
        tokens = _reserved_tokens(request)
        limited = True
        while True:
            name, version = self._serving(request.weights)
            path, body = self._body(request, name, limited=limited)
            try:
                return await self._ask(path, body, tokens, read=partial(self._completion, request, version))
            except responses.PromptTooLong:
                if self.returns_tokens or not limited or self._length_field in self._extra:
                    return Completion((), (), "", "context_length", version)
                # Prompt and max_tokens together may be too long. Without max_tokens the reply gets the remaining
                # context.
                limited = False
            except RequestRefused as refused:
                raise SamplerError(await self._with_explanation(refused)) from None  # the cause may quote the key

    def _completion(self, request: SamplingRequest, version: int, response: HttpResponse) -> Completion:
        content = responses.parse(response)
        used = responses.used_tokens(content)
        if used is not None:
            self._rate_limiter.correct(used - _reserved_tokens(request))
        if not self.returns_tokens:
            return responses.chat_completion(content, version)
        completion = responses.token_completion(content, version)
        if len(completion.ids) > request.params.max_tokens:
            raise RequestRefused(
                f"the reply has {len(completion.ids)} tokens, more than max_tokens={request.params.max_tokens}",
                retryable=False,
            )
        return completion

    def _body(self, request: SamplingRequest, name: str, *, limited: bool) -> tuple[str, dict[str, Any]]:
        """Return path and content of a request; ``limited``: with its ``max_tokens``."""
        params = request.params
        body: dict[str, Any] = {"model": name, "temperature": params.temperature, "top_p": params.top_p}
        if limited:
            body[self._length_field] = params.max_tokens
        if params.stop:
            body["stop"] = list(params.stop)
        if self.returns_tokens:
            most = params.max_tokens
            if self.context_length is not None:
                most = min(most, self.context_length - len(request.ids))
            # Set everything that a server would otherwise take from the model's generation config.
            body |= _TOKEN_FIELDS | {"prompt": list(request.ids), "max_tokens": most, "top_k": params.top_k}
            body["seed"] = request.seed % 2**63
            if params.stop_token_ids:
                body["stop_token_ids"] = list(params.stop_token_ids)
        else:
            body["messages"] = [dict(message) for message in request.messages]
            body["seed"] = request.seed % 2**31
            if params.top_k:
                body["top_k"] = params.top_k  # an extension of vLLM and SGLang
        path = "/completions" if self.returns_tokens else "/chat/completions"
        return path, self._with_extra(body)

    def _with_extra(self, body: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in {**body, **self._extra}.items() if value is not None}

    async def _ask(self, path: str, body: dict[str, Any], tokens: int, *, read: Callable[[HttpResponse], Read]) -> Read:
        """Send a POST, with retries, and return what ``read`` makes of the answer.

        Raises:
            RequestRefused: The error is permanent, or retries are used up.
            SamplerError: The endpoint exceeded the deadline.
        """
        attempt = 0
        while True:
            await self._turn(tokens)
            try:
                answer = await self._attempt(path, json.dumps(body).encode())
                self._rate_limiter.observe_headers(answer.headers, tokens, self._max_pause)
                return read(answer)
            except RequestRefused as refused:
                if self._switch_length_field(refused, body):
                    continue
                if not refused.retryable or attempt == self._retries:
                    raise
                await self._back_off(refused, attempt)
                attempt += 1

    async def _turn(self, tokens: int) -> None:
        """Wait for the request's place in the queue, and for the end of a pause."""
        wait = max(self._rate_limiter.reserve(tokens), self._rate_limiter.paused())
        while wait > 0:
            await asyncio.sleep(wait)
            wait = self._rate_limiter.paused()

    async def _back_off(self, error: RequestRefused, attempt: int) -> None:
        pause = min(30.0, 0.5 * 2**attempt) * self._jitter.uniform(0.5, 1.5)
        if error.retry_after is not None:
            if error.retry_after > self._max_pause:
                raise SamplerError(
                    f"{self._endpoint.url} asks for a pause of {error.retry_after:g} s, above "
                    f"max_pause={self._max_pause:g} s ({self._endpoint.clean(str(error))})"
                ) from error
            # Other requests would be refused meanwhile, too.
            self._rate_limiter.pause(error.retry_after)
            pause = error.retry_after + self._jitter.uniform(0, 0.1 * error.retry_after)
        await asyncio.sleep(pause)

    async def _attempt(self, path: str, body: bytes) -> HttpResponse:
        """Send one POST, with a deadline, when one of the ``parallel`` requests has finished."""
        async with self._slots:
            try:
                async with asyncio.timeout(self._timeout):
                    return await self._endpoint.exchange("POST", path, body)
            except TimeoutError as error:
                raise SamplerError(
                    f"{self._endpoint.url} did not answer within {self._timeout:g} s; increase timeout, or reduce "
                    "max_tokens"
                ) from error

    def _switch_length_field(self, error: RequestRefused, body: dict[str, Any]) -> bool:
        """Rename ``max_tokens`` if the endpoint asks for OpenAI's newer name; return whether it was renamed."""
        if error.status != 400 or "max_completion_tokens" not in str(error) or "max_tokens" not in body:
            return False
        body["max_completion_tokens"] = body.pop("max_tokens")
        self._length_field = "max_completion_tokens"
        return True

    async def _with_explanation(self, error: RequestRefused) -> str:
        message = f"{self._endpoint.url}: {self._endpoint.clean(str(error))}"
        if error.status == 404:
            names = await self._names()
            message += f" (requested model {self.model!r}; " + (
                f"the endpoint has {', '.join(names[:10])})" if names else "is base_url correct? Most end in /v1)"
            )
        return message

    # At the start

    async def _request(self, method: str, path: str, body: dict[str, Any] | None, seconds: float) -> Any:
        data = None if body is None else json.dumps(body).encode()
        try:
            async with asyncio.timeout(seconds):
                return responses.parse(await self._endpoint.exchange(method, path, data))
        except TimeoutError as error:
            raise RequestRefused(f"no answer within {seconds:g} s", retryable=True) from error

    async def _names(self) -> list[str]:
        try:
            return responses.model_names(await self._request("GET", "/models", None, _LIST_SECONDS))
        except RequestRefused:
            return []

    async def _probe(self, *, must: bool) -> None:
        """Find out whether the endpoint returns ids and log-probs, and of which distribution.

        Raises:
            SamplerError: It does not return them although they ``must`` be; or it cannot be asked at all.
        """
        try:
            if self.context_length is None:
                await self._learn_context()
            tables = [
                responses.checked_probe(
                    await self._request("POST", "/completions", self._probe_body(temperature), _PROBE_SECONDS),
                    _PROBE_PROMPT,
                )
                for temperature in (1.0, 0.5)
            ]
        except RequestRefused as refused:
            self.no_tokens_reason = self._endpoint.clean(str(refused))
            # An endpoint that cannot be reached, or rejects the key, cannot chat either.
            if must or refused.retryable or refused.status in (401, 403):
                raise SamplerError(
                    f"{self._endpoint.url} returns no token ids and log-probs for model {self.model!r}, which training "
                    f"needs: {self.no_tokens_reason}. vLLM's server returns them; any endpoint can be evaluated with "
                    "token_ids=False"
                ) from None  # the cause may quote the key
            return
        self.returns_tokens, self.no_tokens_reason = True, ""
        self._logprobs = responses.logprob_mode(*tables)

    async def _learn_context(self) -> None:
        try:
            self.context_length = responses.context_of(
                await self._request("GET", "/models", None, _PROBE_SECONDS), self.model
            )
        except RequestRefused as refused:
            if refused.status in (401, 403) or refused.retryable:
                raise  # other statuses: an endpoint without this list

    def _probe_body(self, temperature: float) -> dict[str, Any]:
        body = {"model": self.model, "prompt": list(_PROBE_PROMPT), "max_tokens": 1, "temperature": temperature}
        return self._with_extra({**body, **_TOKEN_FIELDS, "top_p": 1.0, "top_k": 0, "logprobs": 5, "seed": 0})


# Ids and log-probs, in both ways in which servers return ids, and no processing between the model and sampling.
_TOKEN_FIELDS: dict[str, Any] = {
    "logprobs": 0,
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "min_p": 0.0,
}


def _logprob_mismatch(params: SamplingParams, mode: responses.LogprobMode) -> str:
    """Return why the endpoint's log-probs are not those that :class:`SamplingParams` defines; ``""`` if they are."""
    cuts = params.temperature > 0 and (params.top_p < 1 or params.top_k > 0)
    scaled = params.temperature not in (0, 1)
    if scaled and mode != "processed":
        return (
            f"its log-probs are those at temperature 1, but the request has temperature={params.temperature:g}; start "
            "vLLM with --logprobs-mode processed_logprobs, sample at temperature 1, or evaluate with token_ids=False"
        )
    if cuts and (scaled or mode != "raw"):
        return (
            f"its log-probs would be those after truncation by top_p={params.top_p:g} and top_k={params.top_k}; leave "
            "them out, or evaluate with token_ids=False"
        )
    return ""


def _reserved_tokens(request: SamplingRequest) -> int:
    """Return tokens of prompt and longest reply, for rate limits; of messages an estimate, four characters each."""
    written = sum(len(str(message.get("content") or "")) for message in request.messages) // 4
    return (len(request.ids) or written) + request.params.max_tokens


def _load_tokenizer(tokenizer: Any) -> Any:
    if not isinstance(tokenizer, str | os.PathLike):
        return tokenizer
    return load_tokenizer(tokenizer)


async def _together(ask: Callable[[_Asked], Coroutine[Any, Any, Read]], asked: Sequence[_Asked]) -> list[Read]:
    """Return the answers to all requests, which are sent at the same time."""
    tasks = [asyncio.create_task(ask(request)) for request in asked]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        # The results of the other requests are no longer needed.
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
