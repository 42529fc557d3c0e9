"""Steps over lists of strings."""

# The source text of the functions is also the reference solution: plain Python, without annotations.
# mypy: ignore-errors
# ruff: noqa: RUF007

from __future__ import annotations

from rllm_gym.envs.code.families.building_blocks import Op


def sort_words(words):
    return sorted(words)


def sort_words_down(words):
    return sorted(words, reverse=True)


def reverse_words(words):
    return words[::-1]


def sort_words_by_length(words):
    return sorted(words, key=len)


def sort_words_by_last(words):
    return sorted(words, key=lambda word: (word[-1:], word))


def sort_words_by_vowels(words):
    return sorted(words, key=lambda word: (sum(character in "aeiou" for character in word), word))


def keep_long(words, k):
    return [word for word in words if len(word) > k]


def keep_short(words, k):
    return [word for word in words if len(word) <= k]


def keep_with(words, c):
    return [word for word in words if c in word]


def drop_with(words, c):
    return [word for word in words if c not in word]


def unique_words(words):
    return list(dict.fromkeys(words))


def repeated_words(words):
    return sorted({word for word in words if words.count(word) > 1})


def reverse_letters(words):
    return [word[::-1] for word in words]


def upper_words(words):
    return [word.upper() for word in words]


def capitals(words):
    return [word[:1].upper() + word[1:] for word in words]


def rotate_words(words, k):
    if not words:
        return []
    k %= len(words)
    return words[k:] + words[:k]


def every_kth_word(words, k):
    return words[k - 1 :: k]


def first_characters(words, k):
    return [word[:k] for word in words]


def sort_letters_in_words(words):
    return ["".join(sorted(word)) for word in words]


def add_length(words):
    return [f"{word}{len(word)}" for word in words]


def add_count(words):
    return [f"{word}:{words.count(word)}" for word in dict.fromkeys(words)]


def group_anagrams(words):
    groups = {}
    for word in words:
        groups.setdefault("".join(sorted(word)), []).append(word)
    return ["/".join(group) for group in groups.values()]


def chain_neighbours(words):
    return [first + second[:1] for first, second in zip(words, words[1:])]


def first_letter_to_end(words, ending):
    return [word[1:] + word[:1] + ending for word in words]


def without_common_prefix(words):
    length = 0
    while words and all(len(word) > length and word[length] == words[0][length] for word in words):
        length += 1
    return [word[length:] or "-" for word in words]


def join_words(words, mark):
    return mark.join(words)


def initials(words):
    return "".join(word[:1] for word in words)


def last_letters(words):
    return "".join(word[-1:] for word in words)


def longest_word(words):
    return max(words, key=len) if words else ""


def most_common_word(words):
    return min(words, key=lambda word: (-words.count(word), word)) if words else ""


def common_letters(words):
    common = set(words[0]) if words else set()
    for word in words[1:]:
        common &= set(word)
    return "".join(sorted(common))


def count_words(words):
    return len(words)


def total_length(words):
    return sum(len(word) for word in words)


def count_different_words(words):
    return len(set(words))


def count_beginning_with(words, letters):
    return sum(word[:1] in letters for word in words if word)


def anagram_pairs(words):
    keys = ["".join(sorted(word)) for word in words]
    return sum(keys[i] == keys[j] for i in range(len(keys)) for j in range(i + 1, len(keys)))


def chain_length(words):
    longest = current = 0
    for index, word in enumerate(words):
        current = current + 1 if index and words[index - 1][-1:] == word[:1] else 1
        longest = max(longest, current)
    return longest


def word_lengths(words):
    return [len(word) for word in words]


def word_vowels(words):
    return [sum(character in "aeiou" for character in word) for word in words]


def word_sums(words):
    return [sum(ord(character) - ord("a") + 1 for character in word if "a" <= character <= "z") for word in words]


def word_counts(words):
    return [words.count(word) for word in sorted(set(words))]


def row_lengths(rows):
    return [len(row) for row in rows]


def reverse_rows(rows):
    return rows[::-1]


def backward_rows(rows):
    return [row[::-1] for row in rows]


def upper_rows(rows):
    return [row.upper() for row in rows]


def number_rows(rows, mark):
    return [f"{number}{mark}{row}" for number, row in enumerate(rows, start=1)]


def pad_rows(rows, mark):
    width = max((len(row) for row in rows), default=0)
    return [row + mark * (width - len(row)) for row in rows]


def align_right(rows, mark):
    width = max((len(row) for row in rows), default=0)
    return [mark * (width - len(row)) + row for row in rows]


def join_rows(rows, mark):
    return mark.join(rows)


_R = "rows"
_MARKS = {"mark": tuple("-_+|.*~")}
_W, _T, _N, _L = "words", "text", "number", "numbers"
_LETTERS = {"c": tuple("aeioustrln")}

STEPS: tuple[Op, ...] = (
    Op(sort_words, _W, _W, "Sort the words (by code points)."),
    Op(sort_words_down, _W, _W, "Sort the words in descending order (by code points)."),
    Op(reverse_words, _W, _W, "Reverse the order of the words."),
    Op(sort_words_by_length, _W, _W, "Sort the words by length, ascending; words of equal length keep their order."),
    Op(sort_words_by_last, _W, _W, "Sort the words by their last character; words with the same one by the whole "
         "word."),
    Op(sort_words_by_vowels, _W, _W, "Sort the words by the number of lower-case vowels (a, e, i, o, u) in them; "
         "equal numbers by the word itself.", level=2),
    Op(keep_long, _W, _W, "Keep only the words of more than {k} characters.", {"k": (2, 3, 4)}),
    Op(keep_short, _W, _W, "Keep only the words of at most {k} characters.", {"k": (3, 4, 5, 6)}),
    Op(keep_with, _W, _W, "Keep only the words that contain \"{c}\".", _LETTERS),
    Op(drop_with, _W, _W, "Remove the words that contain \"{c}\".", _LETTERS),
    Op(unique_words, _W, _W, "Keep only the first occurrence of every word."),
    Op(repeated_words, _W, _W, "Keep only the words that occur more than once, each once, and sort them."),
    Op(reverse_letters, _W, _W, "Reverse the characters of every word."),
    Op(upper_words, _W, _W, "Make all letters upper case."),
    Op(capitals, _W, _W, "Make the first character of every word upper case, and leave the others."),
    Op(rotate_words, _W, _W, "Rotate the list {k} places to the left (the first word goes to the end, {k} times).",
         {"k": range(1, 6)}),
    Op(every_kth_word, _W, _W, "Keep only every {k_th} word: those at the positions {k}, 2·{k}, … counted from 1.",
         {"k": (2, 3)}),
    Op(first_characters, _W, _W, "Cut every word after its first {k} characters.", {"k": (1, 2, 3, 4)}),
    Op(sort_letters_in_words, _W, _W, "Sort the characters of every word."),
    Op(add_length, _W, _W, "Append to every word its length."),
    Op(add_count, _W, _W, "Write every different word once, in the order of first occurrence, followed by a colon "
         "and how often it occurs."),
    Op(group_anagrams, _W, _W, "Join the words that consist of the same characters (as often), with / between them, "
         "each group at the place of its first word.", level=2),
    Op(chain_neighbours, _W, _W, "Append to every word the first character of the next, and drop the last word."),
    Op(first_letter_to_end, _W, _W, "Move the first character of every word to its end and append \"{ending}\".",
         {"ending": ("ay", "o", "en", "us", "x")}),
    Op(without_common_prefix, _W, _W, "Remove from every word the longest beginning that all words share; a word of "
         "which nothing is left becomes \"-\".", level=2),
    Op(join_words, _W, _T, "Join the words with \"{mark}\" between them.", {"mark": tuple("-_+/|.")}),
    Op(initials, _W, _T, "Join the first characters of the words."),
    Op(last_letters, _W, _T, "Join the last characters of the words."),
    Op(longest_word, _W, _T, "Take the longest word, the first of several (the empty string if there is no word)."),
    Op(most_common_word, _W, _T, "Take the word that occurs most often, of several the first in sorted order (the "
         "empty string if there is no word).", level=2),
    Op(common_letters, _W, _T, "Take the characters that are in every word, each once, sorted by code point (none, "
         "if there is no word).", level=2),
    Op(count_words, _W, _N, "Count the words."),
    Op(total_length, _W, _N, "Add up the lengths of the words."),
    Op(count_different_words, _W, _N, "Count the different words."),
    Op(count_beginning_with, _W, _N, "Count the words that begin with one of the characters \"{letters}\".",
         {"letters": ("aeiou", "bcd", "st", "mnp", "lr", "abc")}),
    Op(anagram_pairs, _W, _N, "Count the pairs of positions whose words consist of the same characters, as often "
         "(equal words too).", level=2),
    Op(chain_length, _W, _N, "Take the length of the longest run of neighbouring words in which each begins with "
         "the last character of the one before (0 if there is no word).", level=2),
    Op(word_lengths, _W, _L, "Make a list of the lengths of the words."),
    Op(word_vowels, _W, _L, "Make a list of the number of lower-case vowels (a, e, i, o, u) in each word."),
    Op(word_sums, _W, _L, "Make a list of the sums of the letters of each word, a for 1, b for 2, … z for 26; "
         "characters that are not lower-case letters count nothing."),
    Op(word_counts, _W, _L, "Make a list of how often each different word occurs, in the sorted order of the "
         "words."),
    Op(reverse_rows, _R, _R, "Reverse the order of the lines."),
    Op(backward_rows, _R, _R, "Reverse the characters of every line."),
    Op(upper_rows, _R, _R, "Make all letters upper case."),
    Op(number_rows, _R, _R, "Put the number of every line, counted from 1, and \"{mark}\" before it.", _MARKS),
    Op(pad_rows, _R, _R, "Append as many \"{mark}\" to every line as make it as long as the longest.", _MARKS),
    Op(align_right, _R, _R, "Put as many \"{mark}\" before every line as make it as long as the longest.", _MARKS),
    Op(join_rows, _R, _T, "Join the lines with \"{mark}\" between them.", _MARKS),
    Op(row_lengths, _R, _L, "Make a list of the lengths of the lines."),
)  # fmt: skip
