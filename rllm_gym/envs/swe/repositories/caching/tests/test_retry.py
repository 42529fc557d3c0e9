import unittest

from keepfor import Retry


class TestRetry(unittest.TestCase):
    def setUp(self):
        self.slept = []
        self.failures = 0

    def function(self, fail, error=OSError):
        def call():
            if self.failures < fail:
                self.failures += 1
                raise error(self.failures)
            return "done"

        return call

    def test_waits_grow_up_to_the_longest(self):
        self.assertEqual(list(Retry(attempts=5, first=1, longest=5).waits()), [1, 2, 4, 5])
        self.assertEqual(list(Retry(attempts=4, first=2, factor=3).waits()), [2, 6, 18])
        self.assertEqual(list(Retry(attempts=1).waits()), [])

    def test_it_is_tried_until_it_succeeds(self):
        self.assertEqual(Retry(attempts=4).call(self.function(2), sleep=self.slept.append), "done")
        self.assertEqual(self.slept, [1, 2])

    def test_the_last_error_is_raised(self):
        with self.assertRaises(OSError) as caught:
            Retry(attempts=3).call(self.function(9), sleep=self.slept.append)
        self.assertEqual(caught.exception.args, (3,))
        self.assertEqual(self.slept, [1, 2])

    def test_other_errors_are_raised_at_once(self):
        with self.assertRaises(KeyError):
            Retry().call(self.function(9, KeyError), sleep=self.slept.append)
        self.assertEqual(self.failures, 1)
        retry = Retry(on=(KeyError, OSError))
        self.assertEqual(retry.call(self.function(2, KeyError), sleep=self.slept.append), "done")
