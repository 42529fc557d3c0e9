import unittest

from keepfor import Stats


class TestStats(unittest.TestCase):
    def test_rates(self):
        self.assertEqual(Stats().hit_rate, 0)
        self.assertEqual(Stats(hits=3, misses=1).hit_rate, 0.75)
        self.assertEqual(Stats(hits=3, misses=1).requests, 4)

    def test_adding(self):
        self.assertEqual(Stats(1, 2, 3) + Stats(10, 20, 30), Stats(11, 22, 33))
