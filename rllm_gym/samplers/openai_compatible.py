"""A sampler for any endpoint that speaks OpenAI's chat completions: for evaluation, since it returns no token ids."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import random
import urllib.error
import urllib.request
from collections.abc import Sequence
from typing import Any

from rllm_gym.samplers.protocol import Completion, Request, SamplerError, WeightUpdate
from rllm_gym.workers import DeadlineExceeded, WorkerPool

_MAX_REPLY_BYTES = 64 * 2**20
_WORTH_RETRYING = (408, 409, 429, 500, 502, 503, 504)


class OpenAISampler:
    """Replies from ``{base_url}/chat/completions``.

    Args:
        model: Name of the model at the endpoint.
        base_url: Such as ``"http://localhost:8000/v1"``.
        api_key: ``None`` reads the environment variable ``OPENAI_API_KEY``.
        timeout: Seconds one request may take.
        retries: Further attempts after a refusal that may pass (429, 5xx, no connection), with growing pauses.
        parallel: Requests under way at a time.

    Raises:
        ValueError: ``base_url`` is not http or https.
    """

    returns_tokens = False
    context_length: int | None = None
    weight_version = 0

    def __init__(
        self,
        *,
        model: str,
        base_url: str = "https://api.openai.com/v1",
        api_key: str | None = None,
        timeout: float = 600.0,
        retries: int = 3,
        parallel: int = 64,
    ) -> None:
        if not base_url.startswith(("http://", "https://")):
            raise ValueError(f"base_url={base_url!r} must begin with http:// or https://")
        self.model = model
        self._url = base_url.rstrip("/") + "/chat/completions"
        self._key = api_key if api_key is not None else os.environ.get("OPENAI_API_KEY", "")
        self._timeout = timeout
        self._retries = retries
        self._threads = WorkerPool("thread", max_workers=parallel, name="openai-sampler")

    async def sample(self, requests: Sequence[Request]) -> list[Completion]:
        """One reply per request. See :class:`~rllm_gym.samplers.Sampler`.

        Raises:
            SamplerError: The endpoint refuses, cannot be reached, or answers with something else.
        """
        return list(await asyncio.gather(*(self._one(request) for request in requests)))

    async def push(self, update: WeightUpdate) -> int:
        """
        Raises:
            SamplerError: Always: an endpoint's weights are its owner's.
        """
        raise SamplerError("an OpenAI-compatible endpoint takes no weights; train with the torch sampler")

    async def release(self, conversation: str) -> None:
        """Nothing is kept."""

    async def close(self) -> None:
        await self._threads.aclose()

    async def __aenter__(self) -> OpenAISampler:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _one(self, request: Request) -> Completion:
        if not request.messages:
            raise SamplerError("this sampler needs messages, and the request has token ids only")
        body = json.dumps(self._body(request)).encode()
        for attempt in range(self._retries + 1):
            try:
                # urllib's timeout is one of silence; the worker's is one of everything.
                return _completion(await self._threads.arun(self._post, body, timeout=self._timeout))
            except DeadlineExceeded as error:
                raise SamplerError(f"{self._url} did not answer within {self._timeout:g} s") from error
            except _Refused as refused:
                if not refused.may_pass or attempt == self._retries:
                    raise SamplerError(f"{self._url}: {refused}") from refused
            await asyncio.sleep(min(30.0, 0.5 * 2**attempt) * random.uniform(0.5, 1.5))
        raise AssertionError("the loop above returns or raises")

    def _body(self, request: Request) -> dict[str, Any]:
        params = request.params
        body: dict[str, Any] = {
            "model": self.model,
            "messages": [dict(message) for message in request.messages],
            "temperature": params.temperature,
            "top_p": params.top_p,
            "max_tokens": params.max_tokens,
            "seed": request.seed % 2**31,
        }
        if params.stop:
            body["stop"] = list(params.stop)
        if params.top_k:
            body["top_k"] = params.top_k  # vLLM's and SGLang's extension
        return body

    def _post(self, body: bytes) -> Any:
        headers = {"Content-Type": "application/json"}
        if self._key:
            headers["Authorization"] = f"Bearer {self._key}"
        question = urllib.request.Request(self._url, data=body, headers=headers, method="POST")
        try:
            with urllib.request.urlopen(question, timeout=self._timeout) as reply:
                data = reply.read(_MAX_REPLY_BYTES + 1)
        except urllib.error.HTTPError as error:
            said = error.read(2_000).decode("utf-8", "replace")
            raise _Refused(f"{error.code} {error.reason}: {said}", may_pass=error.code in _WORTH_RETRYING) from error
        except (OSError, http.client.HTTPException) as error:
            raise _Refused(f"{type(error).__name__}: {error}", may_pass=True) from error
        if len(data) > _MAX_REPLY_BYTES:
            raise _Refused(f"the reply has more than {_MAX_REPLY_BYTES} bytes", may_pass=False)
        try:
            return json.loads(data)
        except ValueError as error:
            raise _Refused(f"the reply is no JSON: {data[:200]!r}", may_pass=False) from error


class _Refused(Exception):
    def __init__(self, message: str, *, may_pass: bool) -> None:
        super().__init__(message)
        self.may_pass = may_pass


def _completion(answer: Any) -> Completion:
    try:
        choice = answer["choices"][0]
        text = choice["message"].get("content") or ""
        if not isinstance(text, str):
            raise TypeError(f"content is a {type(text).__name__}")
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise _Refused(f"the reply is no chat completion ({error}): {str(answer)[:200]}", may_pass=False) from error
    return Completion((), (), text, str(choice.get("finish_reason") or "stop"))
