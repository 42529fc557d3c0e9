import math
import unittest

from keepfor import ManualClock, SlidingWindow, TokenBucket


class TestTokenBucket(unittest.TestCase):
    def setUp(self):
        self.clock = ManualClock(50.0)
        self.bucket = TokenBucket(2, 5, clock=self.clock)

    def test_a_burst_and_then_the_rate(self):
        self.assertEqual([self.bucket.allow() for _ in range(6)], [True] * 5 + [False])
        self.clock.advance(0.5)
        self.assertEqual([self.bucket.allow() for _ in range(2)], [True, False])

    def test_the_bucket_does_not_overflow(self):
        self.clock.advance(1000)
        self.assertEqual(self.bucket.tokens, 5)
        self.bucket.allow(3)
        self.clock.advance(0.5)
        self.assertEqual(self.bucket.tokens, 3)

    def test_what_is_refused_costs_nothing(self):
        self.assertEqual([self.bucket.allow(cost) for cost in (6, 5)], [False, True])

    def test_waiting(self):
        self.assertEqual(self.bucket.wait_time(5), 0)
        self.bucket.allow(5)
        self.assertEqual(self.bucket.wait_time(), 0.5)
        self.assertEqual(self.bucket.wait_time(5), 2.5)
        self.assertEqual(self.bucket.wait_time(6), math.inf)
        self.clock.advance(self.bucket.wait_time(3))
        self.assertTrue(self.bucket.allow(3))

    def test_arguments_are_checked(self):
        for rate, burst in ((0, 1), (-1, 1), (1, 0)):
            with self.assertRaises(ValueError):
                TokenBucket(rate, burst)


class TestSlidingWindow(unittest.TestCase):
    def setUp(self):
        self.clock = ManualClock()
        self.window = SlidingWindow(2, 10, clock=self.clock)

    def test_the_window_slides(self):
        allowed = []
        for seconds in (0, 6, 0, 4, 0, 6):
            if seconds:
                self.clock.advance(seconds)
            allowed.append(self.window.allow())
        self.assertEqual(allowed, [True, True, False, True, False, True])

    def test_what_is_refused_does_not_count(self):
        self.window.allow()
        self.window.allow()
        self.clock.advance(9)
        self.assertFalse(self.window.allow())
        self.clock.advance(1)
        self.assertEqual(self.window.remaining(), 2)

    def test_keys_do_not_share(self):
        self.window.allow("a")
        self.window.allow("a")
        self.assertFalse(self.window.allow("a"))
        self.assertTrue(self.window.allow("b"))
        self.assertEqual(
            (self.window.remaining("a"), self.window.remaining("b"), self.window.remaining("c")), (0, 1, 2)
        )

    def test_waiting(self):
        self.assertEqual(self.window.wait_time("a"), 0)
        self.window.allow("a")
        self.clock.advance(3)
        self.window.allow("a")
        self.assertEqual(self.window.wait_time("a"), 7)
        self.clock.advance(7)
        self.assertEqual(self.window.wait_time("a"), 0)

    def test_old_keys_are_forgotten(self):
        self.window.allow("a")
        self.clock.advance(5)
        self.window.allow("b")
        self.assertEqual(self.window.keys(), ["a", "b"])
        self.clock.advance(5)
        self.assertEqual(self.window.keys(), ["b"])
        self.window.remaining("c")
        self.assertEqual(self.window.keys(), ["b"])

    def test_arguments_are_checked(self):
        for count, seconds in ((0, 1), (1, 0)):
            with self.assertRaises(ValueError):
                SlidingWindow(count, seconds)
