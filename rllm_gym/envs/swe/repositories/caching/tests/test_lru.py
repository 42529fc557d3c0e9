import unittest

from keepfor import LRUCache


class TestLRUCache(unittest.TestCase):
    def setUp(self):
        self.evicted = []
        self.cache = LRUCache(3, on_evict=lambda key, value: self.evicted.append((key, value)))
        self.cache.update({"a": 1, "b": 2, "c": 3})

    def test_the_oldest_entry_makes_room(self):
        self.cache["d"] = 4
        self.assertEqual(list(self.cache), ["b", "c", "d"])
        self.assertEqual(self.evicted, [("a", 1)])

    def test_reading_is_a_use(self):
        self.assertEqual(self.cache["a"], 1)
        self.cache["d"] = 4
        self.assertEqual(list(self.cache), ["c", "a", "d"])

    def test_writing_is_a_use(self):
        self.cache["a"] = 9
        self.cache["d"] = 4
        self.assertEqual(list(self.cache.items()), [("c", 3), ("a", 9), ("d", 4)])
        self.assertEqual(self.evicted, [("b", 2)])

    def test_looking_is_no_use(self):
        self.assertIn("a", self.cache)
        self.assertEqual(self.cache.peek("a"), 1)
        self.assertIsNone(self.cache.peek("z"))
        self.cache["d"] = 4
        self.assertNotIn("a", self.cache)

    def test_counters(self):
        self.cache.get("a")
        self.cache.get("z")
        self.cache["d"] = 4
        self.cache.peek("d")
        stats = self.cache.stats
        self.assertEqual((stats.hits, stats.misses, stats.evictions), (1, 1, 1))
        self.assertEqual(stats.hit_rate, 0.5)

    def test_deleting(self):
        del self.cache["b"]
        self.assertEqual(len(self.cache), 2)
        self.assertEqual(self.cache.weight, 2)
        with self.assertRaises(KeyError):
            del self.cache["b"]

    def test_it_can_be_changed_while_iterating(self):
        for key in self.cache:
            del self.cache[key]
        self.assertEqual(len(self.cache), 0)

    def test_resizing(self):
        self.cache.resize(1)
        self.assertEqual(list(self.cache), ["c"])
        self.assertEqual(self.evicted, [("a", 1), ("b", 2)])
        self.cache.resize(2)
        self.cache["d"] = 4
        self.assertEqual(list(self.cache), ["c", "d"])

    def test_sizes_are_positive(self):
        for size in (0, -1):
            with self.assertRaises(ValueError):
                LRUCache(size)
            with self.assertRaises(ValueError):
                self.cache.resize(size)


class TestWeights(unittest.TestCase):
    def setUp(self):
        self.cache = LRUCache(10, weigh=len)
        self.cache["a"] = "xxxx"
        self.cache["b"] = "xxxx"

    def test_as_many_entries_go_as_needed(self):
        self.cache["c"] = "xxxxxxx"
        self.assertEqual(list(self.cache), ["c"])
        self.assertEqual(self.cache.weight, 7)

    def test_a_full_cache_is_fine(self):
        self.cache["c"] = "xx"
        self.assertEqual(list(self.cache), ["a", "b", "c"])
        self.assertEqual(self.cache.weight, 10)

    def test_replacing_an_entry_frees_its_weight_first(self):
        self.cache["b"] = "xxxxxx"
        self.assertEqual(list(self.cache), ["a", "b"])
        self.assertEqual(self.cache.weight, 10)

    def test_too_heavy_a_value_changes_nothing(self):
        with self.assertRaises(ValueError):
            self.cache["a"] = "x" * 11
        self.assertEqual(self.cache["a"], "xxxx")
        self.cache["c"] = "x" * 10
        self.assertEqual(list(self.cache), ["c"])
