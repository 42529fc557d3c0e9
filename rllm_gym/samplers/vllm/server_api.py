"""The HTTP requests to a vLLM server, and the interpretation of its answers."""

# ruff: noqa: ASYNC109 - the timeout is the contract
from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rllm_gym.samplers.protocol import SamplerError

_REFUSED = (400, 404, 405, 422)


class ServerLost(SamplerError):
    """The server did not answer: it died, hangs, or cannot be reached."""


class ServerRefused(Exception):
    """The server refused a request.

    Attributes:
        status: The HTTP status.
    """

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class ServerApi:
    """A connection to a server through its Unix socket. Created, used and closed in one event loop."""

    def __init__(self, socket: Path) -> None:
        try:
            import aiohttp
        except ImportError as error:
            raise SamplerError("requests to a vLLM server need aiohttp: pip install 'rllm-gym[vllm]'") from error
        self._errors = (aiohttp.ClientError, OSError)
        self._session = aiohttp.ClientSession(
            "http://vllm",
            timeout=aiohttp.ClientTimeout(total=None),  # each request has its own
            connector=aiohttp.UnixConnector(str(socket), limit=0),
        )

    async def close(self) -> None:
        """Close the connection."""
        await self._session.close()

    async def healthy(self) -> bool:
        """Return whether the server and its engine are alive."""
        try:
            await self._ask("GET", "/health", None, 10.0)
        except (ServerLost, ServerRefused):
            return False
        return True

    async def complete(self, model: str, ids: Sequence[int], params: Mapping[str, Any], timeout: float) -> Any:
        """Return the choice of one completion: ``token_ids``, ``logprobs``, ``finish_reason``."""
        body = {"model": model, "prompt": list(ids), "return_token_ids": True, **params}
        return (await self._ask("POST", "/v1/completions", body, timeout))["choices"][0]

    async def score(self, model: str, ids: Sequence[int], timeout: float) -> list[float]:
        """Return log-probs of all ids except the first."""
        params = {"max_tokens": 1, "temperature": 0.0, "prompt_logprobs": 0}
        choice = await self.complete(model, ids, params, timeout)
        pairs = zip(choice["prompt_logprobs"][1:], ids[1:], strict=True)
        return [entry[str(index)]["logprob"] for entry, index in pairs]

    async def load_adapter(self, name: str, folder: Path, timeout: float) -> None:
        """Serve the adapter in a folder under a name that was not used before."""
        await self._ask("POST", "/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)}, timeout)

    async def unload_adapter(self, name: str, timeout: float) -> None:
        """Stop serving an adapter."""
        await self._ask("POST", "/v1/unload_lora_adapter", {"lora_name": name}, timeout)

    async def call_workers(self, method: str, timeout: float, **arguments: str) -> list[Any]:
        """Call a method of every worker."""
        body = {"method": method, "kwargs": arguments, "timeout": timeout}
        answer = await self._ask("POST", "/collective_rpc", body, timeout)
        return list((answer or {}).get("results", []))

    async def reset_prefix_cache(self, timeout: float) -> bool:
        """Clear the prefix cache; return False if it is still in use."""
        return bool((await self._ask("POST", "/reset_prefix_cache", None, timeout))["success"])

    async def sleep(self, level: int, timeout: float) -> None:
        """Free memory."""
        await self._ask("POST", f"/sleep?level={level}", None, timeout)

    async def wake_up(self, timeout: float) -> None:
        """Allocate it again."""
        await self._ask("POST", "/wake_up", None, timeout)

    async def _ask(self, method: str, path: str, body: Any, timeout: float) -> Any:
        if self._session.closed:  # closed by another request that found the server dead
            raise ServerLost(f"vLLM's server was lost before {path}: the connection was closed")
        try:
            async with asyncio.timeout(timeout), self._session.request(method, path, json=body) as answer:
                if answer.status >= 400:
                    message = (await answer.text())[:2000]
                    if answer.status in _REFUSED:
                        raise ServerRefused(answer.status, message)
                    raise ServerLost(f"vLLM's server answered {answer.status} to {path}: {message}")
                return await answer.json() if answer.content_type == "application/json" else None
        except TimeoutError as error:
            raise ServerLost(f"vLLM's server did not answer {path} within {timeout:g} s (timeout)") from error
        except self._errors as error:
            raise ServerLost(f"vLLM's server was lost during {path}: {type(error).__name__}: {error}") from error
