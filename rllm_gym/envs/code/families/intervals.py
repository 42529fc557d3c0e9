"""Sources over time intervals and over stacks and brackets."""

# The source text of the functions is also the reference solution: plain Python, without annotations.
# mypy: ignore-errors

from __future__ import annotations

import random

from rllm_gym.envs.code.families import inputs
from rllm_gym.envs.code.families.building_blocks import Source


def merge_intervals(spans, gap):
    merged = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1] + gap:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return [end - start for start, end in merged]


def free_times(spans):
    free, reached = [], None
    for start, end in sorted(spans):
        if reached is not None and start > reached:
            free.append(start - reached)
        reached = end if reached is None else max(reached, end)
    return free


def most_at_once(spans):
    counts = []
    for start, _ in sorted(spans):
        counts.append(sum(other <= start < end for other, end in spans))
    return counts


def greatest_selection(spans):
    chosen = []
    for start, end in sorted(spans, key=lambda span: (span[1], span[0])):
        if not chosen or start >= chosen[-1]:
            chosen.append(end)
    return chosen


def rooms_needed(spans):
    free, rooms = [], []
    for start, end in sorted(spans):
        place = next((number for number, until in enumerate(free) if until <= start), None)
        if place is None:
            free.append(end)
            place = len(free) - 1
        free[place] = end
        rooms.append(place + 1)
    return rooms


def bracket_depths(text):
    depths, depth = [], 0
    for character in text:
        if character in "([{":
            depth += 1
            depths.append(depth)
        elif character in ")]}":
            depth = max(0, depth - 1)
    return depths


def bracket_error(text):
    waiting = []
    for index, character in enumerate(text):
        if character in "([{":
            waiting.append(character)
        elif not waiting or waiting.pop() + character not in ("()", "[]", "{}"):
            return index
    return len(text) if waiting else -1


def reverse_polish(text, m):
    stack = []
    for token in text.split():
        if token in ("+", "-", "*"):
            second, first = stack.pop(), stack.pop()
            result = first + second if token == "+" else first - second if token == "-" else first * second
            stack.append(result % m)
        else:
            stack.append(int(token))
    return stack[-1]


def waiting_times(values):
    waits = []
    for index, value in enumerate(values):
        waits.append(next((later - index for later in range(index + 1, len(values)) if values[later] > value), 0))
    return waits


def largest_rectangles(heights):
    areas = []
    for index, height in enumerate(heights):
        left = right = index
        while left > 0 and heights[left - 1] >= height:
            left -= 1
        while right + 1 < len(heights) and heights[right + 1] >= height:
            right += 1
        areas.append(height * (right - left + 1))
    return areas


def trapped_water(heights):
    return [min(max(heights[: index + 1]), max(heights[index:])) - height for index, height in enumerate(heights)]


def stack_machine(commands, start):
    stack, seen = [start], []
    for command in commands:
        name, _, argument = command.partition(" ")
        if name == "push":
            stack.append(int(argument))
        elif name == "pop" and stack:
            stack.pop()
        elif name == "double" and stack:
            stack.append(stack[-1])
        elif name == "add" and len(stack) > 1:
            stack.append(stack.pop() + stack.pop())
        elif name == "top":
            seen.append(stack[-1] if stack else -1)
    return seen


def _spans(rng: random.Random, size: int) -> tuple[list[list[int]]]:
    count = rng.randint(3, 4 + size)
    spans = []
    for _ in range(count):
        start = rng.randint(0, 10 + 5 * size)
        spans.append([start, start + rng.randint(1, 8)])
    return (spans,)


def _brackets(rng: random.Random, size: int) -> tuple[str]:
    text, waiting = "", ""
    for _ in range(rng.randint(4, 8 + 4 * size)):
        if waiting and rng.random() < 0.5:
            text, waiting = text + waiting[-1], waiting[:-1]
        else:
            pair = rng.choice(("()", "()", "[]", "{}"))
            text, waiting = text + pair[0], waiting + pair[1]
    text += waiting[::-1]
    if rng.random() < 0.6:
        at = rng.randrange(len(text))
        text = text[:at] + rng.choice(("", ")", "(", "]")) + text[at + 1 :]
    return (text,)


def _polish(rng: random.Random, size: int) -> tuple[str]:
    tokens, depth = [], 0
    for _ in range(rng.randint(4, 5 + 3 * size)):
        if depth >= 2 and rng.random() < 0.5:
            tokens.append(rng.choice("+-*"))
            depth -= 1
        else:
            tokens.append(str(rng.randint(0, 20)))
            depth += 1
    tokens += [rng.choice("+-*") for _ in range(depth - 1)]
    return (" ".join(tokens),)


def _heights(rng: random.Random, size: int) -> tuple[list[int]]:
    return ([rng.randint(0, 9) for _ in range(rng.randint(4, 6 + 2 * size))],)


def _values(rng: random.Random, size: int) -> tuple[list[int]]:
    return (inputs.numbers(rng, size),)


def _machine(rng: random.Random, size: int) -> tuple[list[str]]:
    names = ("push", "push", "push", "pop", "double", "add", "top", "top", "top")
    commands = []
    for _ in range(rng.randint(5, 8 + 3 * size)):
        name = rng.choice(names)
        commands.append(f"push {rng.randint(-9, 20)}" if name == "push" else name)
    return ([*commands, "top"],)


_SPANS = (("spans", "lists"),)
_SPANS_SAY = "`spans` lists intervals [start, end] of integers, start less than end, in no particular order."
_SPAN_EDGES = (([[1, 2]],), ([[1, 4], [1, 4]],), ([[1, 3], [3, 5]],), ([[1, 9], [2, 3]],))
_HEIGHTS_SAY = (
    "`heights` is a list of integers of at least 0, the heights of columns of width 1 that stand side by side."
)

SOURCES: dict[str, tuple[Source, ...]] = {
    "intervals": (
        Source(merge_intervals, _SPANS, "numbers", _SPANS_SAY, "Join intervals that overlap or whose distance is at "
               "most {gap}, until no two can be joined. Make a list of the lengths of the joined intervals, in the "
               "order of their starts.", _spans, _SPAN_EDGES, {"gap": (0, 1, 2)}, 2),
        Source(free_times, _SPANS, "numbers", _SPANS_SAY, "Make a list of the lengths of the gaps between the first "
               "start and the last end that no interval covers, from left to right.", _spans, _SPAN_EDGES, {}, 2),
        Source(most_at_once, _SPANS, "numbers", _SPANS_SAY, "Make a list: for each interval, in ascending order of the "
               "starts, the number of intervals (itself included) that contain its start, where an interval contains "
               "its own start but not its end.", _spans, _SPAN_EDGES, {}, 2),
        Source(greatest_selection, _SPANS, "numbers", _SPANS_SAY, "Choose as many intervals as possible of which no "
               "two overlap (one may start where another ends): again and again the one that ends first of those that "
               "overlap none chosen before. Make a list of the ends of those chosen, in ascending order.", _spans,
               _SPAN_EDGES, {}, 3),
        Source(rooms_needed, _SPANS, "numbers", _SPANS_SAY, "Go through the intervals in ascending order of start (of "
               "equal starts the earlier end first) and give each the lowest room number, from 1, that is not taken "
               "then; a room is taken from the start of its interval until before its end. Make a list of the room "
               "numbers in that order.", _spans, _SPAN_EDGES, {}, 3),
    ),
    "stacks": (
        Source(bracket_depths, (("text", "text"),), "numbers", "`text` is a string of brackets ( ) [ ] {{ }}.", "Go "
               "through it from the left with a depth of 0: an opening bracket of any kind raises it by 1, a closing "
               "one lowers it by 1, but not below 0. Make a list of the depths right after each opening bracket.",
               _brackets, (("",), ("())(",), ("([{}])",)), {}, 1),
        Source(bracket_error, (("text", "text"),), "number", "`text` is a string of brackets ( ) [ ] {{ }}.", "Take "
               "the index (from 0) of the first closing bracket that does not close the latest open one of its kind; "
               "the length of the string, if there is none such but a bracket is still open at the end; and -1, if all "
               "is well.", _brackets, (("",), ("(]",), ("([{}])",), ("((",)), {}, 2),
        Source(reverse_polish, (("text", "text"),), "number", "`text` is an expression in reverse Polish notation: "
               "integers and the operators + - *, separated by spaces; it leaves one value.", "Evaluate it; every "
               "operator takes its result modulo {m} (from 0 to {m_less}).", _polish,
               (("7",), ("2 3 -",), ("1 2 3 * +",)), {"m": (97, 101, 1000, 1009, 9973)}, 2),
        Source(stack_machine, (("commands", "rows"),), "numbers", "`commands` lists commands for a stack: push X (an "
               "integer), pop, double, add, top.", "The stack begins with {start} on it. push puts an integer on it, "
               "pop removes the top one, double puts the top one on it once more, add replaces the two top ones by "
               "their sum; each does nothing where there are too few. Make a list of what is on top at each top (-1 "
               "where the stack is empty).", _machine, ((["top"],), (["pop", "top", "pop"],), (["add", "top"],)),
               {"start": range(-3, 10)}, 2),
    ),
    "skylines": (
        Source(waiting_times, (("values", "numbers"),), "numbers", "`values` is a list of integers.", "Replace every "
               "value by how many places further on the next greater value stands, or by 0 if there is none.", _values,
               (([],), ([3],), ([2, 2, 2],)), {}, 2),
        Source(largest_rectangles, (("heights", "numbers"),), "numbers", _HEIGHTS_SAY, "Make a list: for each column "
               "the area of the widest rectangle of exactly its height that fits into the columns and covers it.",
               _heights,
               (([],), ([0],), ([3, 3, 3],)), {}, 3),
        Source(trapped_water, (("heights", "numbers"),), "numbers", _HEIGHTS_SAY, "Rain falls until water stands "
               "wherever it is held. Make a list of the depth of the water on each column.", _heights,
               (([],), ([4],), ([3, 0, 3],)), {}, 3),
    ),
}  # fmt: skip
