"""A system Chromium for the tests of this folder, shared by all tests that do not break it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import pytest

from rllm_gym.envs.web.browser import BrowserPool
from rllm_gym.envs.web.sites.http import Handler, Request, Response
from tests.browser.long_timeouts import require_chromium, use_long_timeouts

Site = Callable[..., Handler]


@pytest.fixture(scope="session")
def chromium() -> str:
    return require_chromium()


@pytest.fixture(scope="session")
def pool(chromium: str) -> Iterator[BrowserPool]:
    with BrowserPool(chromium, prewarm=0) as pool:
        yield pool


@pytest.fixture
def long_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests in which everything ends by itself."""
    use_long_timeouts(monkeypatch)


@pytest.fixture
def site() -> Site:
    """``site(html, {"/other": html})``: the first at ``/``, others at their paths, 404 elsewhere."""

    def make(html: str, others: Mapping[str, str | Response] | None = None) -> Handler:
        pages = {"/": html, **(others or {})}

        def handle(request: Request) -> Response:
            found = pages.get(request.path)
            if isinstance(found, Response):
                return found
            return Response((found or "nothing here").encode(), status=404 if found is None else 200)

        return handle

    return make
