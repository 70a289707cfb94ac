"""Whole numbers in words of a language."""

from __future__ import annotations

import functools
import importlib
from typing import Any

from appliance.errors import ConfigError

_ONES = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven",
    "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = (
    "zero", "ten", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety",
)  # fmt: skip


def number_words(number: int, language: str) -> list[str]:
    """Return a number from 0 to 999 in words of a language (ISO 639), in each of its forms: "one"
    is "eins", "ein", "eine" and so on in German. Raises ConfigError for unknown languages.

    English is `in_words`. Other languages take 2.4 MB: the rules of the Unicode CLDR project.
    """
    if language == "en":
        return [in_words(number)]
    forms = _speller(language).format_number(number).text_by_ruleset.values()
    plain_forms = {" ".join(form.replace("\u00ad", "").split()) for form in forms}
    return sorted(form for form in plain_forms if not strange_letters(form))


@functools.cache
def _speller(language: str) -> Any:
    """The library unicode-rbnf's engine for a language. Raises ConfigError."""
    try:
        return importlib.import_module("unicode_rbnf").RbnfEngine.for_language(language)
    except ImportError:
        raise ConfigError(
            f"number words in the language {language!r} need the library unicode-rbnf, which is "
            "not installed; sudo apt install python3-unicode-rbnf"
        ) from None
    except ValueError:
        raise ConfigError(
            f"number words in the language {language!r} are unknown; write the numbers as a table "
            'of digits and words, such as {20 = "twenty", 21 = "twenty one"}'
        ) from None


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
