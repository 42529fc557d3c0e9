"""A Chromium browser with an isolated context per episode and a network policy. Contains no tasks and no rewards."""

from rllm_gym.envs.web.browser.errors import BrowserFault, SiteFault
from rllm_gym.envs.web.browser.executable import find_chromium
from rllm_gym.envs.web.browser.pool import BrowserPool, shared_pool
from rllm_gym.envs.web.browser.session import BrowserSession

__all__ = ["BrowserFault", "BrowserPool", "BrowserSession", "SiteFault", "find_chromium", "shared_pool"]
