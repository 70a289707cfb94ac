"""Whole numbers in English words."""

_ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = ("", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


def in_words(number: int) -> str:
    """Return a number from 0 to 999 in English words, without "and"."""
    if number < 20:
        return _ONES[number]
    if number < 100:
        return _TENS[number // 10] + (f" {_ONES[number % 10]}" if number % 10 else "")
    rest = f" {in_words(number % 100)}" if number % 100 else ""
    return f"{_ONES[number // 100]} hundred{rest}"


def strange_letters(text: str) -> bool:
    """True if a text has letters that no word may have: see `_check_word`."""
    return not all(letter.isalnum() or letter in "'- " for letter in text)
