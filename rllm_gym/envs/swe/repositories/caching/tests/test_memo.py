import unittest

from keepfor import ManualClock, memoize
from keepfor.memo import make_key


class TestMemoize(unittest.TestCase):
    def setUp(self):
        self.calls = []

    def function(self, **options):
        @memoize(**options)
        def remembered(*args, **kwargs):
            """What it does."""
            self.calls.append((args, kwargs))
            return args[0] if args else None

        return remembered

    def test_equal_calls_share_a_result(self):
        function = self.function()
        self.assertEqual([function(1, x=2, y=3), function(1, y=3, x=2), function(2)], [1, 1, 2])
        self.assertEqual(len(self.calls), 2)

    def test_numbers_of_different_types_do_not(self):
        function = self.function()
        self.assertEqual([type(function(value)) for value in (1, 1.0, True, 1)], [int, float, bool, int])
        self.assertEqual(len(self.calls), 3)

    def test_containers_are_fine(self):
        function = self.function()
        function([1, {"a": {2, 3}}])
        function([1, {"a": {3, 2}}])
        function((1, {"a": {3, 2}}))
        self.assertEqual(len(self.calls), 2)

    def test_some_arguments_do_not_matter(self):
        function = self.function(ignore=("log",))
        function(1, log="a")
        function(1, log="b")
        function(1)
        self.assertEqual(len(self.calls), 1)

    def test_results_grow_old(self):
        clock = ManualClock()
        function = self.function(seconds=5, clock=clock)
        function(1)
        clock.advance(4)
        function(1)
        clock.advance(1)
        function(1)
        self.assertEqual(len(self.calls), 2)

    def test_the_number_of_results_is_limited(self):
        function = self.function(size=2)
        for value in (1, 2, 3, 1):
            function(value)
        self.assertEqual(len(self.calls), 4)

    def test_none_may_be_a_result(self):
        keeping, asking = self.function(), self.function(keep_none=False)
        keeping()
        keeping()
        self.assertEqual(len(self.calls), 1)
        asking()
        asking()
        self.assertEqual(len(self.calls), 3)

    def test_forgetting(self):
        function = self.function()
        function(1)
        function.forget()
        self.assertEqual(len(function.cache), 0)
        function(1)
        self.assertEqual(len(self.calls), 2)

    def test_errors_are_not_kept(self):
        @memoize()
        def fails():
            self.calls.append(())
            raise RuntimeError

        for _ in range(2):
            with self.assertRaises(RuntimeError):
                fails()
        self.assertEqual(len(self.calls), 2)

    def test_it_looks_like_the_function(self):
        function = self.function()
        self.assertEqual((function.__name__, function.__doc__), ("remembered", "What it does."))

    def test_positions_and_names_are_different(self):
        by_name = len({make_key((1,), {}), make_key((), {"x": 1})})
        nested = len({make_key(((1, 2),), {}), make_key((1, 2), {})})
        self.assertEqual((by_name, nested), (2, 2))
