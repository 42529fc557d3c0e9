"""The prefix cache finds only what is shared, and nearly all of it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rllm_gym.samplers.prefix_cache import CachedPrefix, PrefixCache

BLOCK = 4
prompt = st.lists(st.integers(0, 2), max_size=20).map(tuple)


def shared(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    return next((n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))


@settings(max_examples=300, deadline=None)
@given(stored=st.lists(prompt, max_size=6), requested=prompt)
def test_the_longest_prefix_is_found_to_a_block(stored: list[tuple[int, ...]], requested: tuple[int, ...]) -> None:
    store = PrefixCache(BLOCK, 1000)
    for number, ids in enumerate(stored):
        store.keep(number, CachedPrefix(ids, kept=ids, size=1))
    limit = max(len(requested) - 1, 0)
    source, length = store.find(requested, limit)
    best = max((min(shared(ids, requested), limit) for ids in stored), default=0)
    assert length <= best
    assert length >= best // BLOCK * BLOCK
    if source is not None:
        assert source.ids[:length] == requested[:length]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), prompt, st.integers(1, 9)), max_size=30))
def test_memory_is_bounded_and_nothing_dropped_is_found(rows: list[tuple[int, tuple[int, ...], int]]) -> None:
    store = PrefixCache(BLOCK, 20)
    for name, ids, size in rows:
        store.keep(name, CachedPrefix(ids, kept=ids, size=size))
        assert store.bytes <= 20
    for name in range(5):
        store.drop(name)
    assert (store.bytes, len(store)) == (0, 0)
    assert all(store.find(ids, len(ids)) == (None, 0) for _, ids, _ in rows)


def test_the_least_recently_used_entry_is_evicted_first() -> None:
    store = PrefixCache(BLOCK, 3)
    ids = {name: (name,) * 8 for name in range(4)}
    for name in range(3):
        store.keep(name, CachedPrefix(ids[name], kept=ids[name], size=1))
    assert store.find(ids[0], 8)[1] == 8
    store.keep(3, CachedPrefix(ids[3], kept=ids[3], size=1))
    assert [store.find(ids[name], 8)[1] for name in range(4)] == [8, 0, 8, 8]


def test_a_source_too_large_to_keep_is_not_kept() -> None:
    store = PrefixCache(BLOCK, 3)
    store.keep("big", CachedPrefix((1,) * 8, kept=(), size=4))
    assert store.find((1,) * 8, 8) == (None, 0)
