"""Steps over single integers. All are fast for integers of any size that the preceding steps return."""

# The source text of the functions is also the reference solution: plain Python, without annotations.
# mypy: ignore-errors

from __future__ import annotations

from rllm_gym.envs.code.families.building_blocks import Op


def add_number(number, k):
    return number + k


def multiply_number(number, k):
    return number * k


def modulo(number, m):
    return number % m


def square_number(number):
    return number * number


def absolute(number):
    return abs(number)


def digit_sum(number):
    return sum(int(digit) for digit in str(abs(number)))


def digital_root(number):
    number = abs(number)
    while number > 9:
        number = sum(int(digit) for digit in str(number))
    return number


def reverse_digits(number):
    reversed_digits = int(str(abs(number))[::-1])
    return -reversed_digits if number < 0 else reversed_digits


def sort_digits(number):
    return int("".join(sorted(str(abs(number)), reverse=True)))


def count_ones(number):
    return bin(abs(number)).count("1")


def exclusive_or(number, k):
    return abs(number) ^ k


def distance_to_multiple(number, k):
    return min(number % k, -number % k)


def next_multiple(number, k):
    return -(-number // k) * k


def whole_root(number):
    from math import isqrt

    return isqrt(abs(number))


def triangular(number):
    number = abs(number)
    return number * (number + 1) // 2


def drop_digit(number, d):
    rest = str(abs(number)).replace(str(d), "")
    return int(rest) if rest else 0


def divide_while(number, k):
    number = abs(number)
    while number and number % k == 0:
        number //= k
    return number


def collatz_steps(number):
    number, steps = abs(number) % 1000 + 1, 0
    while number != 1:
        number = number // 2 if number % 2 == 0 else 3 * number + 1
        steps += 1
    return steps


def count_divisors(number):
    number = abs(number) % 1000 + 1
    return sum(number % divisor == 0 for divisor in range(1, number + 1))


def in_base(number, base):
    digits, rest = "", abs(number)
    while rest:
        digits = "0123456789abcdef"[rest % base] + digits
        rest //= base
    return ("-" if number < 0 else "") + (digits or "0")


def with_separators(number, mark):
    return f"{number:,}".replace(",", mark)


def digits_of(number):
    return [int(digit) for digit in str(abs(number))]


def roman(number):
    number, written = abs(number) % 3999 + 1, ""
    for value, letters in (
        (1000, "M"), (900, "CM"), (500, "D"), (400, "CD"), (100, "C"), (90, "XC"),
        (50, "L"), (40, "XL"), (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I"),
    ):  # fmt: skip
        while number >= value:
            written += letters
            number -= value
    return written


def column_name(number):
    number, name = abs(number) + 1, ""
    while number:
        number, rest = divmod(number - 1, 26)
        name = chr(ord("A") + rest) + name
    return name


_N, _T, _L = "number", "text", "numbers"

STEPS: tuple[Op, ...] = (
    Op(add_number, _N, _N, "Add {k}.", {"k": (*range(-20, 0), *range(1, 40))}),
    Op(multiply_number, _N, _N, "Multiply by {k}.", {"k": (-7, -5, -3, -2, *range(2, 30))}),
    Op(modulo, _N, _N, "Take the remainder modulo {m} (from 0 to {m_less}).", {"m": (17, 19, 23, 29, 31, 97, 101)}),
    Op(square_number, _N, _N, "Square it."),
    Op(absolute, _N, _N, "Take the absolute value."),
    Op(digit_sum, _N, _N, "Take the sum of the decimal digits of its absolute value."),
    Op(digital_root, _N, _N, "Take the sum of the decimal digits of its absolute value, and again, until one digit "
         "is left."),
    Op(reverse_digits, _N, _N, "Reverse its decimal digits; the sign stays, leading zeros are dropped."),
    Op(sort_digits, _N, _N, "Sort the decimal digits of its absolute value in descending order."),
    Op(count_ones, _N, _N, "Count the ones in the binary form of its absolute value."),
    Op(exclusive_or, _N, _N, "Take the bitwise exclusive or of its absolute value and {k}.", {"k": range(1, 64)}),
    Op(distance_to_multiple, _N, _N, "Take its distance to the nearest multiple of {k}.", {"k": range(7, 40)}),
    Op(next_multiple, _N, _N, "Round it up to a multiple of {k}.", {"k": range(3, 30)}),
    Op(whole_root, _N, _N, "Take the whole part of the square root of its absolute value."),
    Op(triangular, _N, _N, "Take the sum of all integers from 1 to its absolute value (0 for 0)."),
    Op(drop_digit, _N, _N, "Remove every digit {d} from the decimal form of its absolute value (0, if none is left).",
         {"d": range(10)}),
    Op(divide_while, _N, _N, "Take its absolute value and divide it by {k} as long as that leaves no remainder (0 "
         "stays 0).", {"k": (2, 3, 5)}),
    Op(collatz_steps, _N, _N, "Take 1 plus the remainder of its absolute value modulo 1000; then count how often one "
         "has to halve it if it is even, and else multiply it by 3 and add 1, until it is 1.", level=2),
    Op(count_divisors, _N, _N, "Take 1 plus the remainder of its absolute value modulo 1000, and count the positive "
         "divisors of that.", level=2),
    Op(in_base, _N, _T, "Write it in base {base}, with the digits 0123456789abcdef and a minus sign if it is "
         "negative.", {"base": (2, 3, 4, 5, 6, 7, 8, 9, 11, 12, 13, 16)}),
    Op(with_separators, _N, _T, "Write it in decimal form with \"{mark}\" between groups of three digits, from the "
         "right.", {"mark": (",", "'", "_", ".")}),
    Op(digits_of, _N, _L, "Make a list of the decimal digits of its absolute value."),
    Op(roman, _N, _T, "Take 1 plus the remainder of its absolute value modulo 3999, and write that as a Roman "
         "numeral (with IV, IX, XL, XC, CD and CM).", level=2),
    Op(column_name, _N, _T, "Take its absolute value and write the name of the column with that index in a "
         "spreadsheet, indices counted from 0: 0 is A, 25 is Z, 26 is AA.", level=2),
)  # fmt: skip
