import unittest

from keepfor import ManualClock, TTLCache


class TestTTLCache(unittest.TestCase):
    def setUp(self):
        self.clock = ManualClock(100.0)
        self.cache = TTLCache(10, clock=self.clock)

    def test_entries_live_for_less_than_their_time(self):
        self.cache["a"] = 1
        self.clock.advance(9.5)
        self.assertEqual(self.cache["a"], 1)
        self.clock.advance(0.5)
        self.assertNotIn("a", self.cache)
        with self.assertRaises(KeyError):
            self.cache["a"]
        self.assertEqual((self.cache.stats.hits, self.cache.stats.misses), (1, 1))

    def test_writing_again_gives_time_again(self):
        self.cache["a"] = 1
        self.clock.advance(6)
        self.cache["a"] = 2
        self.clock.advance(6)
        self.assertEqual(self.cache["a"], 2)
        self.clock.advance(4)
        self.assertEqual(len(self.cache), 0)

    def test_reading_does_not_give_time(self):
        self.cache["a"] = 1
        self.clock.advance(6)
        self.assertEqual(self.cache["a"], 1)
        self.clock.advance(6)
        self.assertIsNone(self.cache.get("a"))

    def test_unless_reading_refreshes(self):
        cache = TTLCache(10, refresh=True, clock=self.clock)
        cache["a"] = 1
        cache.set("b", 2, 3)
        self.clock.advance(2)
        self.assertEqual((cache["a"], cache["b"]), (1, 2))
        self.clock.advance(2)
        self.assertEqual(cache["b"], 2)
        self.clock.advance(3)
        self.assertEqual(list(cache), ["a"])

    def test_every_entry_may_have_its_own_time(self):
        self.cache.set("short", 1, 2)
        self.cache.set("long", 2, 20)
        self.cache["usual"] = 3
        self.clock.advance(2)
        self.assertEqual(list(self.cache), ["long", "usual"])
        self.clock.advance(8)
        self.assertEqual(list(self.cache), ["long"])
        with self.assertRaises(ValueError):
            self.cache.set("never", 1, 0)

    def test_expire_counts(self):
        self.cache.update({"a": 1, "b": 2})
        self.clock.advance(5)
        self.cache["b"] = 3
        self.clock.advance(5)
        self.assertEqual(self.cache.expire(), 1)
        self.assertEqual(self.cache.expire(), 0)
        self.assertEqual(list(self.cache), ["b"])

    def test_a_removed_entry_can_come_back(self):
        self.cache["a"] = 1
        self.clock.advance(5)
        del self.cache["a"]
        self.cache["a"] = 2
        self.clock.advance(5)
        self.assertEqual(self.cache["a"], 2)

    def test_age(self):
        self.cache["a"] = 1
        self.clock.advance(4)
        self.assertEqual(self.cache.age("a"), 4)
        with self.assertRaises(KeyError):
            self.cache.age("b")

    def test_what_dies_first_makes_room(self):
        cache = TTLCache(10, size=2, clock=self.clock)
        cache["a"] = 1
        cache.set("b", 2, 5)
        cache["a"] = 3
        cache["c"] = 4
        self.assertEqual(sorted(cache), ["a", "c"])
        self.assertEqual(cache.stats.evictions, 1)
        cache["a"] = 5
        self.assertEqual(len(cache), 2)

    def test_what_is_dead_makes_room_first(self):
        cache = TTLCache(10, size=2, clock=self.clock)
        cache.set("a", 1, 1)
        cache["b"] = 2
        self.clock.advance(1)
        cache["c"] = 3
        self.assertEqual(sorted(cache), ["b", "c"])
        self.assertEqual(cache.stats.evictions, 0)

    def test_arguments_are_checked(self):
        with self.assertRaises(ValueError):
            TTLCache(0)
        with self.assertRaises(ValueError):
            TTLCache(1, size=0)
        with self.assertRaises(ValueError):
            self.clock.advance(-1)
