"""Search over HTTP: a retrieval server with the interface of Search-R1's, or of rLLM's search example."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rllm_gym.core import EnvironmentFault, stream_seed
from rllm_gym.envs.search.corpus import Document, QueryRefused, read_document

FAULT = "retrieval_server"
"""The kind of the faults of retrieval servers."""

MAX_RESPONSE_BYTES = 32 * 2**20

_PROBE = "history of the city"


class RetrievalServer:
    """Searches with ``POST /retrieve``.

    The request has the keys of both servers, ``{"queries": [query], "topk": k, "return_scores": true, "query": query,
    "top_k": k}``. The response is ``{"result": [[{"document": {"id", "contents"}, "score"}]]}``, or ``{"results":
    [{"content", "score"}]}``. A document without an id gets one that is computed from its text.

    Args:
        url: URL of the server, with or without ``/retrieve``.
        timeout: Seconds for a request.

    Raises:
        ModuleNotFoundError: aiohttp is missing.
        ValueError: The URL cannot be used.
    """

    def __init__(self, url: str, timeout: float) -> None:
        import aiohttp
        from yarl import URL

        parsed = URL(url)
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ValueError(f"corpus={url!r:.200} must be a URL such as http://localhost:8000")
        self._url = parsed if parsed.path.endswith("/retrieve") else parsed / "retrieve"
        self._timeout = aiohttp.ClientTimeout(total=timeout)

    async def search(self, query: str, k: int) -> list[Document]:
        """Return at most ``k`` documents, in the server's order.

        Raises:
            QueryRefused: This query fails while another one succeeds.
            EnvironmentFault: The server fails; kind :data:`FAULT`.
        """
        try:
            return await self._ask(query, k)
        except _Failure as failure:
            # A model must not be able to end an episode as a fault with a query that the server cannot take.
            try:
                await self._ask(_PROBE, 1)
            except _Failure as error:
                raise EnvironmentFault(
                    f"the retrieval server at {self._url} failed: {error}; check that it runs and is the one meant",
                    kind=FAULT,
                ) from failure
            raise QueryRefused(f"the search engine cannot answer this query ({failure}); use other words") from failure

    async def _ask(self, query: str, k: int) -> list[Document]:
        import aiohttp

        body = {"queries": [query], "topk": k, "return_scores": True, "query": query, "top_k": k}
        try:
            # A session belongs to an event loop, and an environment is used from several: one per request.
            async with (
                aiohttp.ClientSession(timeout=self._timeout) as session,
                session.post(self._url, json=body, allow_redirects=False) as response,
            ):
                if response.status != 200:
                    raise _Failure(f"HTTP status {response.status}")
                content = await _read_at_most(response, MAX_RESPONSE_BYTES)
        except TimeoutError as error:
            raise _Failure(f"no answer within {self._timeout.total:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise _Failure(f"{type(error).__name__}: {error}"[:300]) from error
        try:
            return _documents(json.loads(content))[:k]
        except (ValueError, RecursionError) as error:  # TaskError is a ValueError
            raise _Failure(f"a response that cannot be read: {error}"[:300]) from error


class _Failure(Exception):
    """A request failed, for whatever reason."""


async def _read_at_most(response: Any, limit: int) -> bytes:
    content = bytearray()
    async for chunk in response.content.iter_chunked(2**16):
        content += chunk
        if len(content) > limit:
            raise _Failure(f"a response of more than {limit:,} bytes")
    return bytes(content)


def _documents(response: Any) -> list[Document]:
    """Return the documents of a response.

    Raises:
        ValueError: It has another form.
    """
    results = None
    if isinstance(response, Mapping):
        results = response.get("results")
        if results is None and isinstance(response.get("result"), list) and response["result"]:
            results = response["result"][0]
    if not isinstance(results, list):
        raise ValueError(f"no list under 'result' or 'results' in {response!r:.100}")
    documents: dict[str, Document] = {}
    for item in results:
        found = item
        if isinstance(item, Mapping):
            # rLLM's server numbers its results, so that "id" beside "content" names no document.
            found = next((item[key] for key in ("document", "content") if item.get(key) is not None), item)
        text = json.dumps(found, sort_keys=True) if isinstance(found, Mapping) else str(found)
        document = read_document(found, f"{stream_seed(text) % 16**8:08x}")
        documents.setdefault(document.id, document)
    return list(documents.values())
