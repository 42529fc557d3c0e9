"""Steps over lists of integers."""

# The source text of the functions is also the reference solution: plain Python, without annotations.
# mypy: ignore-errors
# ruff: noqa: RUF007

from __future__ import annotations

from rllm_gym.envs.code.families.building_blocks import Op


def keep_multiples(values, k):
    return [value for value in values if value % k == 0]


def drop_multiples(values, k):
    return [value for value in values if value % k != 0]


def keep_greater(values, k):
    return [value for value in values if value > k]


def keep_less(values, k):
    return [value for value in values if value < k]


def keep_remainder(values, k, r):
    return [value for value in values if value % k == r % k]


def multiply_all(values, k):
    return [value * k for value in values]


def add_to_all(values, k):
    return [value + k for value in values]


def square_all(values):
    return [value * value for value in values]


def absolute_values(values):
    return [abs(value) for value in values]


def remainders(values, k):
    return [value % k for value in values]


def clip_all(values, low, high):
    return [min(max(value, low), high) for value in values]


def reverse_list(values):
    return values[::-1]


def sort_up(values):
    return sorted(values)


def sort_down(values):
    return sorted(values, reverse=True)


def sort_by_size(values):
    return sorted(values, key=lambda value: (abs(value), value))


def sort_by_remainder(values, k):
    return sorted(values, key=lambda value: (value % k, value))


def unique_first(values):
    return list(dict.fromkeys(values))


def only_repeated(values):
    return [value for value in dict.fromkeys(values) if values.count(value) > 1]


def running_sums(values):
    sums, total = [], 0
    for value in values:
        total += value
        sums.append(total)
    return sums


def running_largest(values):
    return [max(values[: index + 1]) for index in range(len(values))]


def running_smallest(values):
    return [min(values[: index + 1]) for index in range(len(values))]


def differences(values, gap):
    return [after - before for before, after in zip(values, values[gap:])]


def neighbour_sums(values):
    return [a + b for a, b in zip(values, values[1:])]


def rotate_left(values, k):
    if not values:
        return []
    k %= len(values)
    return values[k:] + values[:k]


def take_first(values, k):
    return values[:k]


def drop_first(values, k):
    return values[k:]


def drop_last(values, k):
    return values[: max(0, len(values) - k)]


def every_kth(values, k):
    return values[k - 1 :: k]


def drop_every_kth(values, k):
    return [value for position, value in enumerate(values, start=1) if position % k != 0]


def chunk_sums(values, k):
    return [sum(values[start : start + k]) for start in range(0, len(values), k)]


def chunk_largest(values, k):
    return [max(values[start : start + k]) for start in range(0, len(values), k)]


def reverse_chunks(values, k):
    return [value for start in range(0, len(values), k) for value in values[start : start + k][::-1]]


def window_largest(values, k):
    return [max(values[start : start + k]) for start in range(len(values) - k + 1)]


def window_sums(values, k):
    return [sum(values[start : start + k]) for start in range(len(values) - k + 1)]


def swap_pairs(values):
    swapped = list(values)
    for index in range(0, len(swapped) - 1, 2):
        swapped[index], swapped[index + 1] = swapped[index + 1], swapped[index]
    return swapped


def interleave_halves(values):
    half = (len(values) + 1) // 2
    mixed = []
    for index in range(half):
        mixed.append(values[index])
        if half + index < len(values):
            mixed.append(values[half + index])
    return mixed


def ranks(values):
    ordered = sorted(set(values))
    return [ordered.index(value) + 1 for value in values]


def smaller_before(values):
    return [sum(other < value for other in values[:index]) for index, value in enumerate(values)]


def greater_after(values):
    return [sum(other > value for other in values[index + 1 :]) for index, value in enumerate(values)]


def occurrences(values):
    return [values.count(value) for value in values]


def times_position(values):
    return [value * position for position, value in enumerate(values, start=1)]


def move_to_end(values, k):
    return [value for value in values if value != k] + [value for value in values if value == k]


def evens_first(values):
    return [value for value in values if value % 2 == 0] + [value for value in values if value % 2 == 1]


def negate_every_kth(values, k):
    return [-value if position % k == 0 else value for position, value in enumerate(values, start=1)]


def collapse_runs(values):
    return [value for index, value in enumerate(values) if index == 0 or values[index - 1] != value]


def run_lengths(values):
    lengths = []
    for index, value in enumerate(values):
        if index and values[index - 1] == value:
            lengths[-1] += 1
        else:
            lengths.append(1)
    return lengths


def peaks(values):
    return [b for a, b, c in zip(values, values[1:], values[2:]) if a < b > c]


def digit_sums(values):
    return [sum(int(digit) for digit in str(abs(value))) for value in values]


def next_greater(values):
    return [next((other for other in values[index + 1 :] if other > value), -1) for index, value in enumerate(values)]


def remove_smallest(values):
    if not values:
        return []
    at = values.index(min(values))
    return values[:at] + values[at + 1 :]


def fold_ends(values):
    half = len(values) // 2
    folded = [values[index] + values[-1 - index] for index in range(half)]
    return [*folded, values[half]] if len(values) % 2 else folded


def exclusive_or_running(values, k):
    result, kept = [], k
    for value in values:
        kept ^= abs(value)
        result.append(kept)
    return result


def total(values):
    return sum(values)


def product_modulo(values, m):
    product = 1
    for value in values:
        product = product * value % m
    return product % m


def spread(values):
    return max(values) - min(values) if values else 0


def count_different(values):
    return len(set(values))


def count_greater(values, k):
    return sum(value > k for value in values)


def count_multiples(values, k):
    return sum(value % k == 0 for value in values)


def alternating_sum(values):
    return sum(value if index % 2 == 0 else -value for index, value in enumerate(values))


def kth_largest(values, k):
    different = sorted(set(values), reverse=True)
    return different[k - 1] if len(different) >= k else -1


def most_frequent(values):
    return min(values, key=lambda value: (-values.count(value), value)) if values else 0


def lower_median(values):
    return sorted(values)[(len(values) - 1) // 2] if values else 0


def longest_rise(values):
    longest = current = 0
    for index, value in enumerate(values):
        current = current + 1 if index and values[index - 1] < value else 1
        longest = max(longest, current)
    return longest


def best_run_sum(values):
    best = current = 0
    for value in values:
        current = max(0, current + value)
        best = max(best, current)
    return best


def inversions(values):
    return sum(values[j] < values[i] for i in range(len(values)) for j in range(i + 1, len(values)))


def pairs_with_sum(values, k):
    return sum(values[i] + values[j] == k for i in range(len(values)) for j in range(i + 1, len(values)))


def pairs_divisible(values, k):
    return sum((values[i] + values[j]) % k == 0 for i in range(len(values)) for j in range(i + 1, len(values)))


def largest_gap(values):
    ordered = sorted(values)
    return max((b - a for a, b in zip(ordered, ordered[1:])), default=0)


def sign_changes(values):
    signs = [value > 0 for value in values if value != 0]
    return sum(a != b for a, b in zip(signs, signs[1:]))


def longest_increasing(values):
    best = []
    for index, value in enumerate(values):
        best.append(1 + max((best[j] for j in range(index) if values[j] < value), default=0))
    return max(best, default=0)


def longest_run_within(values, k):
    longest = 0
    for i in range(len(values)):
        for j in range(i, len(values)):
            part = values[i : j + 1]
            if max(part) - min(part) <= k:
                longest = max(longest, j + 1 - i)
    return longest


def smallest_missing(values):
    candidate = 0
    while candidate in values:
        candidate += 1
    return candidate


def weighted_sum(values, k):
    return sum(value * (1 + index % k) for index, value in enumerate(values))


def value_at(values, k):
    return values[k % len(values)] if values else 0


def to_letters(values):
    return "".join("abcdefghijklmnopqrstuvwxyz"[value % 26] for value in values)


def joined_with(values, mark):
    return mark.join(str(value) for value in values)


def compare_neighbours(values):
    return "".join("<" if a < b else ">" if a > b else "=" for a, b in zip(values, values[1:]))


_L, _N, _T = "numbers", "number", "text"
_K = {"k": (2, 3, 4, 5, 6, 7)}
_SMALL = {"k": (2, 3, 4)}

STEPS: tuple[Op, ...] = (
    Op(keep_multiples, _L, _L, "Keep only the values that are divisible by {k}.", {"k": (2, 3, 4, 5)}),
    Op(drop_multiples, _L, _L, "Remove the values that are divisible by {k}.", {"k": (2, 3, 4, 5, 7)}),
    Op(keep_greater, _L, _L, "Keep only the values greater than {k}.", {"k": range(-6, 13)}),
    Op(keep_less, _L, _L, "Keep only the values less than {k}.", {"k": range(4, 25)}),
    Op(keep_remainder, _L, _L, "Keep only the values whose non-negative remainder modulo {k} is that of {r}.",
         {"k": (3, 4, 5), "r": (1, 2)}),
    Op(multiply_all, _L, _L, "Multiply every value by {k}.", {"k": (-3, -2, 2, 3, 4, 5, 6, 7, 9)}),
    Op(add_to_all, _L, _L, "Add {k} to every value.", {"k": (-9, -7, -5, -4, -3, -2, -1, *range(1, 12))}),
    Op(square_all, _L, _L, "Replace every value by its square."),
    Op(absolute_values, _L, _L, "Replace every value by its absolute value."),
    Op(remainders, _L, _L, "Replace every value by its remainder modulo {k} (from 0 to {k_less}, also for negative "
         "values).", {"k": range(3, 14)}),
    Op(clip_all, _L, _L, "Replace every value less than {low} by {low}, and every value greater than {high} by "
         "{high}.", {"low": range(-5, 4), "high": range(6, 18)}),
    Op(reverse_list, _L, _L, "Reverse the order of the list."),
    Op(sort_up, _L, _L, "Sort the list in ascending order."),
    Op(sort_down, _L, _L, "Sort the list in descending order."),
    Op(sort_by_size, _L, _L, "Sort the list by absolute value; of equal absolute values the negative comes first."),
    Op(sort_by_remainder, _L, _L, "Sort the list by the remainder modulo {k} (from 0 to {k_less}); equal remainders "
         "by value, ascending.", {"k": range(3, 12)}),
    Op(unique_first, _L, _L, "Keep only the first occurrence of every value."),
    Op(only_repeated, _L, _L, "Keep only the values that occur more than once, each once, in the order of their "
         "first occurrence."),
    Op(running_sums, _L, _L, "Replace every value by the sum of all values up to and including it."),
    Op(running_largest, _L, _L, "Replace every value by the largest of all values up to and including it."),
    Op(running_smallest, _L, _L, "Replace every value by the smallest of all values up to and including it."),
    Op(differences, _L, _L, "Replace the list by the differences between each value and the one {gap} places before "
         "it (later minus earlier); the first {gap} values have none.", {"gap": (1, 2, 3)}),
    Op(neighbour_sums, _L, _L, "Replace the list by the sums of each two neighbouring values."),
    Op(rotate_left, _L, _L, "Rotate the list {k} places to the left (the first value goes to the end, {k} times).",
         {"k": range(1, 8)}),
    Op(take_first, _L, _L, "Keep only the first {k} values (all, if there are fewer).", {"k": range(3, 8)}),
    Op(drop_first, _L, _L, "Remove the first {k} values (all, if there are fewer).", {"k": (1, 2, 3)}),
    Op(drop_last, _L, _L, "Remove the last {k} values (all, if there are fewer).", {"k": (1, 2, 3)}),
    Op(every_kth, _L, _L, "Keep only every {k_th} value: those at the positions {k}, 2·{k}, … counted from 1.",
         _SMALL),
    Op(drop_every_kth, _L, _L, "Remove every {k_th} value: those at the positions {k}, 2·{k}, … counted from 1.",
         {"k": (2, 3, 4, 5)}),
    Op(chunk_sums, _L, _L, "Cut the list into pieces of {k} values (the last may be shorter) and replace each by "
         "its sum.", _SMALL),
    Op(chunk_largest, _L, _L, "Cut the list into pieces of {k} values (the last may be shorter) and replace each by "
         "its largest value.", _SMALL),
    Op(reverse_chunks, _L, _L, "Cut the list into pieces of {k} values (the last may be shorter) and reverse each "
         "piece where it stands.", {"k": (2, 3, 4, 5)}, level=2),
    Op(window_largest, _L, _L, "Replace the list by the largest value of each {k} consecutive values, from left to "
         "right (none, if there are fewer than {k}).", _SMALL, level=2),
    Op(window_sums, _L, _L, "Replace the list by the sum of each {k} consecutive values, from left to right (none, "
         "if there are fewer than {k}).", _SMALL, level=2),
    Op(swap_pairs, _L, _L, "Swap the first with the second value, the third with the fourth, and so on; a last value "
         "without a partner stays."),
    Op(interleave_halves, _L, _L, "Cut the list in two halves (the first is the longer one, if they differ) and mix "
         "them: first value of the first half, first of the second, second of the first, and so on.", level=2),
    Op(ranks, _L, _L, "Replace every value by its rank: 1 for the smallest of the different values, 2 for the next, "
         "and so on.", level=2),
    Op(smaller_before, _L, _L, "Replace every value by the number of smaller values before it.", level=2),
    Op(greater_after, _L, _L, "Replace every value by the number of greater values after it.", level=2),
    Op(occurrences, _L, _L, "Replace every value by how often it occurs in the list."),
    Op(times_position, _L, _L, "Multiply every value by its position, counted from 1."),
    Op(move_to_end, _L, _L, "Move all values equal to {k} to the end; the others keep their order.",
         {"k": (0, 1, 2, 3)}),
    Op(evens_first, _L, _L, "Put the even values before the odd ones; both keep their order."),
    Op(negate_every_kth, _L, _L, "Change the sign of every {k_th} value: those at the positions {k}, 2·{k}, … "
         "counted from 1.", _SMALL),
    Op(collapse_runs, _L, _L, "Of equal neighbouring values keep only one."),
    Op(run_lengths, _L, _L, "Replace every run of equal neighbouring values by its length.", level=2),
    Op(peaks, _L, _L, "Keep only the values that are greater than both their neighbours (the first and the last "
         "value have only one, and are removed).", level=2),
    Op(digit_sums, _L, _L, "Replace every value by the sum of the decimal digits of its absolute value."),
    Op(next_greater, _L, _L, "Replace every value by the first greater value after it, or by -1 if there is none.",
         level=2),
    Op(remove_smallest, _L, _L, "Remove the smallest value (its first occurrence)."),
    Op(fold_ends, _L, _L, "Fold the list: replace it by first plus last value, second plus second last, and so on; "
         "a value in the middle stays as it is.", level=2),
    Op(exclusive_or_running, _L, _L, "Begin with {k}; replace every value by the bitwise exclusive or of what was "
         "there before it and its absolute value, where what was there before the first is {k}.", {"k": range(16)},
         level=2),
    Op(total, _L, _N, "Take the sum of the list (0 for an empty one)."),
    Op(product_modulo, _L, _N, "Take the product of the list modulo {m} (from 0 to {m_less}; the product of an empty "
         "list is 1).", {"m": (97, 101, 997, 1009, 10007)}),
    Op(spread, _L, _N, "Take the largest value minus the smallest (0 for an empty list)."),
    Op(count_different, _L, _N, "Count the different values."),
    Op(count_greater, _L, _N, "Count the values greater than {k}.", {"k": range(8)}),
    Op(count_multiples, _L, _N, "Count the values divisible by {k}.", {"k": (2, 3)}),
    Op(alternating_sum, _L, _N, "Take the first value minus the second plus the third minus the fourth, and so on "
         "(0 for an empty list)."),
    Op(kth_largest, _L, _N, "Take the {k_th} largest of the different values, or -1 if there are fewer than {k}.",
         {"k": (2, 3, 4)}),
    Op(most_frequent, _L, _N, "Take the value that occurs most often, the smallest of several (0 for an empty "
         "list).", level=2),
    Op(lower_median, _L, _N, "Take the median: the middle value in ascending order, the lower of two (0 for an empty "
         "list)."),
    Op(longest_rise, _L, _N, "Take the length of the longest run of neighbouring values each greater than the one "
         "before (0 for an empty list).", level=2),
    Op(best_run_sum, _L, _N, "Take the largest sum of neighbouring values, where choosing none (sum 0) is allowed.",
         level=2),
    Op(inversions, _L, _N, "Count the pairs of positions where the earlier value is greater than the later one.",
         level=2),
    Op(pairs_with_sum, _L, _N, "Count the pairs of positions whose values add up to {k}.", {"k": range(3, 12)},
         level=2),
    Op(pairs_divisible, _L, _N, "Count the pairs of positions whose values have a sum divisible by {k}.", _K,
         level=2),
    Op(largest_gap, _L, _N, "Take the largest difference between values that are neighbours in ascending order (0 "
         "for fewer than two values)."),
    Op(sign_changes, _L, _N, "Leave zeros out and count how often the sign changes from one value to the next.",
         level=2),
    Op(longest_increasing, _L, _N, "Take the length of the longest strictly increasing subsequence (its values need "
         "not be neighbours; 0 for an empty list).", level=2),
    Op(longest_run_within, _L, _N, "Take the length of the longest run of neighbouring values whose largest and "
         "smallest differ by at most {k} (0 for an empty list).", _K, level=2),
    Op(smallest_missing, _L, _N, "Take the smallest integer of at least 0 that is not in the list."),
    Op(weighted_sum, _L, _N, "Take the sum in which the values count once, twice, … {k} times, and then again once, "
         "twice, and so on.", {"k": (2, 3, 4, 5)}),
    Op(value_at, _L, _N, "Take the value at index {k} modulo the length of the list, indices counted from 0 (0 for "
         "an empty list).", {"k": range(1, 12)}),
    Op(to_letters, _L, _T, "Replace every value by a letter, 0 by a, 1 by b, … 25 by z, other values by their "
         "remainder modulo 26 (never negative), and join the letters."),
    Op(joined_with, _L, _T, "Write the values one after the other with \"{mark}\" between them.",
         {"mark": (",", "-", ";", "+", "/", "|", ":")}),
    Op(compare_neighbours, _L, _T, "Write for each two neighbouring values <, > or =, as the first compares with the "
         "second."),
)  # fmt: skip
