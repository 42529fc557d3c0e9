"""Caches and rate limits for long-running programs."""

from keepfor.clock import ManualClock
from keepfor.limits import SlidingWindow, TokenBucket
from keepfor.lru import LRUCache
from keepfor.memo import memoize
from keepfor.retry import Retry
from keepfor.stats import Stats
from keepfor.ttl import TTLCache

__all__ = ["LRUCache", "ManualClock", "Retry", "SlidingWindow", "Stats", "TTLCache", "TokenBucket", "memoize"]
