"""Steps over strings."""

# The source text of the functions is also the reference solution: plain Python, without annotations.
# mypy: ignore-errors

from __future__ import annotations

from rllm_gym.envs.code.families.building_blocks import Op


def reverse_text(text):
    return text[::-1]


def upper_text(text):
    return text.upper()


def lower_text(text):
    return text.lower()


def swap_case(text):
    return text.swapcase()


def shift_letters(text, k):
    shifted = []
    for character in text:
        if "a" <= character <= "z":
            character = chr((ord(character) - ord("a") + k) % 26 + ord("a"))
        elif "A" <= character <= "Z":
            character = chr((ord(character) - ord("A") + k) % 26 + ord("A"))
        shifted.append(character)
    return "".join(shifted)


def shift_by_position(text, k):
    return "".join(
        chr((ord(character) - ord("a") + k * index) % 26 + ord("a")) if "a" <= character <= "z" else character
        for index, character in enumerate(text)
    )


def mirror_alphabet(text):
    return "".join(
        chr(ord("a") + ord("z") - ord(character)) if "a" <= character <= "z" else character for character in text
    )


def without_vowels(text):
    return "".join(character for character in text if character not in "aeiouAEIOU")


def only_letters(text):
    return "".join(character for character in text if character.isalpha())


def without_character(text, c):
    return text.replace(c, "")


def replace_character(text, c, d):
    return text.replace(c, d)


def hide_vowels(text, mark):
    return "".join(mark if character in "aeiouAEIOU" else character for character in text)


def repeat_characters(text, k):
    return "".join(character * k for character in text)


def repeat_vowels(text, k):
    return "".join(character * k if character in "aeiou" else character for character in text)


def collapse_repeats(text):
    return "".join(character for index, character in enumerate(text) if index == 0 or text[index - 1] != character)


def first_occurrences(text):
    return "".join(dict.fromkeys(text))


def sort_characters(text):
    return "".join(sorted(text))


def every_kth_character(text, k):
    return text[::k]


def rotate_text(text, k):
    if not text:
        return ""
    k %= len(text)
    return text[k:] + text[:k]


def run_length_text(text):
    pieces = []
    for index, character in enumerate(text):
        if index and text[index - 1] == character:
            pieces[-1][1] += 1
        else:
            pieces.append([character, 1])
    return "".join(f"{character}{count}" for character, count in pieces)


def capitalise_words(text):
    return " ".join(word[:1].upper() + word[1:] for word in text.split(" "))


def reverse_each_word(text):
    return " ".join(word[::-1] for word in text.split(" "))


def reverse_word_order(text):
    return " ".join(text.split()[::-1])


def spaces_to(text, mark):
    return text.replace(" ", mark)


def swap_halves(text):
    half = (len(text) + 1) // 2
    return text[half:] + text[:half]


def alternate_case(text):
    return "".join(character.upper() if index % 2 == 0 else character.lower() for index, character in enumerate(text))


def swap_neighbours(text):
    return "".join(text[index : index + 2][::-1] for index in range(0, len(text), 2))


def reverse_groups(text, k):
    return "".join(text[index : index + k][::-1] for index in range(0, len(text), k))


def rails(text, k):
    rows = [""] * k
    for index, character in enumerate(text):
        rows[index % k] += character
    return "".join(rows)


def zigzag(text, k):
    rows = [""] * k
    for index, character in enumerate(text):
        place = index % (2 * k - 2)
        rows[min(place, 2 * k - 2 - place)] += character
    return "".join(rows)


def strip_pairs(text):
    kept = []
    for character in text:
        if kept and kept[-1] == character:
            kept.pop()
        else:
            kept.append(character)
    return "".join(kept)


def move_vowels_first(text):
    vowels = [character for character in text if character in "aeiou"]
    return "".join(vowels + [character for character in text if character not in "aeiou"])


def by_frequency(text):
    return "".join(sorted(set(text), key=lambda character: (-text.count(character), character)))


def text_length(text):
    return len(text)


def count_vowels(text):
    return sum(character in "aeiouAEIOU" for character in text)


def count_character(text, c):
    return text.count(c)


def count_different_characters(text):
    return len(set(text))


def longest_repeat(text):
    longest = current = 0
    for index, character in enumerate(text):
        current = current + 1 if index and text[index - 1] == character else 1
        longest = max(longest, current)
    return longest


def letter_sum(text):
    return sum(ord(character) - ord("a") + 1 for character in text if "a" <= character <= "z")


def polynomial_hash(text, base, m):
    value = 0
    for character in text:
        value = (value * base + ord(character)) % m
    return value


def longest_distinct(text):
    best, start, seen = 0, 0, {}
    for index, character in enumerate(text):
        if seen.get(character, -1) >= start:
            start = seen[character] + 1
        seen[character] = index
        best = max(best, index + 1 - start)
    return best


def longest_palindrome(text):
    best = 0
    for start in range(len(text)):
        for end in range(start + best + 1, len(text) + 1):
            part = text[start:end]
            if part == part[::-1]:
                best = max(best, end - start)
    return best


def count_substring(text, part):
    return sum(text.startswith(part, index) for index in range(len(text)))


def letter_positions(text):
    return [ord(character) - ord("a") + 1 for character in text if "a" <= character <= "z"]


def places_of(text, c):
    return [index for index, character in enumerate(text) if character == c]


def text_run_lengths(text):
    lengths = []
    for index, character in enumerate(text):
        if index and text[index - 1] == character:
            lengths[-1] += 1
        else:
            lengths.append(1)
    return lengths


def character_counts(text):
    return [text.count(character) for character in sorted(set(text))]


def split_words(text):
    return text.split()


_T, _N, _L, _W = "text", "number", "numbers", "words"
_LETTERS = {"c": tuple("aeioustrln")}
_FEW = {"k": (2, 3)}
_GROUPS = {"k": (2, 3, 4, 5)}

STEPS: tuple[Op, ...] = (
    Op(reverse_text, _T, _T, "Reverse the string."),
    Op(upper_text, _T, _T, "Make all letters upper case."),
    Op(lower_text, _T, _T, "Make all letters lower case."),
    Op(swap_case, _T, _T, "Make upper-case letters lower case, and lower-case letters upper case."),
    Op(shift_letters, _T, _T, "Move every letter {k} places on in the alphabet, from z on to a; case is kept, other "
         "characters stay.", {"k": range(1, 26)}),
    Op(shift_by_position, _T, _T, "Move every lower-case letter on in the alphabet, from z on to a, by {k} times its "
         "index in the string (counted from 0); other characters stay.", {"k": (1, 2, 3, 4, 5, 7, 9)}, level=2),
    Op(mirror_alphabet, _T, _T, "Replace every lower-case letter by its mirror image in the alphabet: a by z, b by "
         "y, and so on."),
    Op(without_vowels, _T, _T, "Remove the vowels (a, e, i, o, u in either case)."),
    Op(only_letters, _T, _T, "Remove everything that is not a letter."),
    Op(without_character, _T, _T, "Remove every \"{c}\".", _LETTERS),
    Op(replace_character, _T, _T, "Replace every \"{c}\" by \"{d}\".", {"c": tuple("aeiost"), "d": tuple("xyz*_#")}),
    Op(hide_vowels, _T, _T, "Replace every vowel (a, e, i, o, u in either case) by \"{mark}\".",
         {"mark": tuple("*-.#_")}),
    Op(repeat_characters, _T, _T, "Write every character {k} times.", _FEW),
    Op(repeat_vowels, _T, _T, "Write every lower-case vowel (a, e, i, o, u) {k} times.", _FEW),
    Op(collapse_repeats, _T, _T, "Of equal neighbouring characters keep only one."),
    Op(first_occurrences, _T, _T, "Keep only the first occurrence of every character."),
    Op(sort_characters, _T, _T, "Sort the characters by their code points."),
    Op(every_kth_character, _T, _T, "Keep only the characters at the indices 0, {k}, 2·{k}, …", _FEW),
    Op(rotate_text, _T, _T, "Rotate the string {k} places to the left (the first character goes to the end, {k} "
         "times).", {"k": range(1, 8)}),
    Op(run_length_text, _T, _T, "Replace every run of equal characters by the character and the length of the run, "
         "as in \"aab\" to \"a2b1\".", level=2),
    Op(capitalise_words, _T, _T, "Make the first character of every word upper case, and leave the others (words are "
         "separated by single spaces)."),
    Op(reverse_each_word, _T, _T, "Reverse every word where it stands (words are separated by single spaces)."),
    Op(reverse_word_order, _T, _T, "Reverse the order of the words and separate them by single spaces."),
    Op(spaces_to, _T, _T, "Replace every space by \"{mark}\".", {"mark": tuple("_-.+/|~")}),
    Op(swap_halves, _T, _T, "Cut the string in two halves (the first is the longer one, if they differ) and swap "
         "them."),
    Op(alternate_case, _T, _T, "Make the characters at even indices (from 0) upper case and the others lower case."),
    Op(swap_neighbours, _T, _T, "Swap the first with the second character, the third with the fourth, and so on; a "
         "last one without a partner stays."),
    Op(reverse_groups, _T, _T, "Cut the string into pieces of {k} characters (the last may be shorter) and reverse "
         "each where it stands.", _GROUPS),
    Op(rails, _T, _T, "Deal the characters out in turn to {k} rows, and write the rows one after the other.", _GROUPS,
         level=2),
    Op(zigzag, _T, _T, "Write the characters in a zigzag over {k} rows (down to the last row, up to the first, down "
         "again, one character a row), and then the rows one after the other.", {"k": (3, 4, 5)}, level=2),
    Op(strip_pairs, _T, _T, "Remove two equal neighbouring characters, again and again from the left, until there "
         "are none.", level=2),
    Op(move_vowels_first, _T, _T, "Put the lower-case vowels (a, e, i, o, u) before all other characters; both keep "
         "their order."),
    Op(by_frequency, _T, _T, "Write every different character once, the most frequent first; equally frequent ones "
         "by code point.", level=2),
    Op(text_length, _T, _N, "Take the length of the string."),
    Op(count_vowels, _T, _N, "Count the vowels (a, e, i, o, u in either case)."),
    Op(count_character, _T, _N, "Count how often \"{c}\" occurs.", _LETTERS),
    Op(count_different_characters, _T, _N, "Count the different characters."),
    Op(longest_repeat, _T, _N, "Take the length of the longest run of equal characters (0 for an empty string)."),
    Op(letter_sum, _T, _N, "Add up the lower-case letters, a for 1, b for 2, … z for 26; other characters count "
         "nothing."),
    Op(polynomial_hash, _T, _N, "Begin with 0; for every character, from the left, multiply by {base}, add its code "
         "point, and take the remainder modulo {m}.", {"base": (31, 33, 131, 257), "m": (997, 1009, 65521, 1000003)}),
    Op(longest_distinct, _T, _N, "Take the length of the longest piece of neighbouring characters that are all "
         "different.", level=2),
    Op(longest_palindrome, _T, _N, "Take the length of the longest piece of neighbouring characters that reads the "
         "same backwards.", level=2),
    Op(count_substring, _T, _N, "Count the places where \"{part}\" occurs (they may overlap).",
         {"part": ("an", "er", "is", "st", "a", "e", "in", "to")}),
    Op(letter_positions, _T, _L, "Make a list of the positions of its lower-case letters in the alphabet, a for 1 to "
         "z for 26; other characters are left out."),
    Op(places_of, _T, _L, "Make a list of the indices (from 0) where \"{c}\" stands.", _LETTERS),
    Op(text_run_lengths, _T, _L, "Make a list of the lengths of its runs of equal characters."),
    Op(character_counts, _T, _L, "Make a list of how often each of its different characters occurs, in the order of "
         "their code points."),
    Op(split_words, _T, _W, "Split the string at spaces into a list of words."),
)  # fmt: skip
