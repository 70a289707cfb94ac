"""Commands of the control socket that correct a transcript, and let the appliance learn from it.

A correction is stored beside the text and published as an event of its own, never as a sentence, so
no automation runs twice.
"""

import re
from collections.abc import Callable
from datetime import UTC, datetime
from difflib import SequenceMatcher
from typing import Any

from appliance.control import ControlError
from appliance.daemon.command_group import CommandGroup, bad_request
from appliance.daemon.log_commands import ID_LETTERS
from appliance.daemon.setting_commands import SettingCommands, find_mistakes, is_text
from appliance.mqtt import events
from appliance.records import Correction
from appliance.store import Store, Wanted

TEXT_LETTERS = 1000
WORDS_AT_MOST = 6
"""Longest difference that is offered for learning; a longer one is another sentence."""
LEAST_LETTERS = 3
"""A shorter word is not offered for the vocabulary: it would match too often."""
LEAST_REPLACED = 5
"""Shorter words (with the spaces between them) are not offered for replacing: others say them."""
LEAST_SEEN = 2
"""Sentences with the same wrong words, before a replacement is offered."""


class CorrectionCommands(CommandGroup):
    """`correct` and `learn`."""

    def __init__(
        self,
        store: Store,
        node: str,
        settings: SettingCommands,
        publish: Callable[[Correction], object],
        is_common: Callable[[str], bool] = lambda _: False,
    ) -> None:
        """`publish` is called with each correction once it is stored; `is_common` tells the words
        that the model knows anyway."""
        self._store, self._node = store, node
        self._settings, self._publish, self._is_common = settings, publish, is_common

    def _answer_correct(self, transcript_id: Any, text: Any) -> dict[str, Any]:
        """Store what was really said; answer with the transcript and what may be learnt."""
        id = transcript_id
        if not isinstance(id, str) or not 0 < len(id) <= ID_LETTERS or not is_text(id):
            raise bad_request("transcript_id: expected the id of a transcript")
        text = None if text is None else _one_line("text", text)
        found = self._store.correct(id, text)
        if found is None:
            raise ControlError("refused", "The log no longer has this sentence.")
        self._publish(Correction(id, text, datetime.now(UTC)))
        shown = events.transcript(found, self._node, found.stored, late=False)
        return {"transcript": shown, "offers": self._offers(found.transcript.text, text)}

    def _offers(self, heard: str, spoken: str | None) -> dict[str, Any]:
        """Return the arguments of `learn` that the difference suggests, without what is known.

        Words are only offered for replacing if two sentences had them and each was corrected: in
        others they may be right. Nothing is offered that consists of common words and numbers.
        """
        differences = find_differences(heard, spoken) if spoken else []
        known = self._settings.read(None).settings.vocabulary
        words = [
            word
            for _, word in differences
            if len(word) >= LEAST_LETTERS
            and not _has(known.words, word)
            and not self._are_common(word)
        ]
        replace = [
            {"heard": heard, "written": written}
            for heard, written in differences
            if known.replace.get(heard) != written
            and len(heard) >= LEAST_REPLACED
            and not self._are_common(heard)
            and not self._store.count(Wanted(uncorrected=heard))
            and self._store.count(Wanted(grep=(heard,))) >= LEAST_SEEN
        ]
        return {"words": list(dict.fromkeys(words)), "replace": replace}

    def _are_common(self, words: str) -> bool:
        return all(word.isdecimal() or self._is_common(word) for word in words.split())

    def _answer_learn(self, word: Any, heard: Any, written: Any) -> dict[str, Any]:
        """Add a word to the vocabulary, or a replacement; nothing is saved if that is wrong."""
        before = self._settings.read(None)
        known = before.settings.vocabulary
        if word is not None and heard is None and written is None:
            word = _one_line("word", word)
            if _has(known.words, word):
                return {"changed": {}}
            wanted: dict[str, Any] = {"vocabulary.words": [*known.words, word]}
        elif word is None:
            heard, written = _one_line("heard", heard), _one_line("written", written)
            kept = {
                one: text for one, text in known.replace.items() if one.lower() != heard.lower()
            }
            wanted = {"vocabulary.replace": {**kept, heard.lower(): written}}
        else:
            raise bad_request("expected word, or heard and written")
        change = self._settings.propose(wanted, before)
        if mistakes := find_mistakes(wanted) or change.mistakes:
            raise ControlError("refused", next(iter(mistakes.values())), mistakes=[*mistakes])
        return {"changed": self._settings.save(change)}


def find_differences(heard: str, spoken: str) -> list[tuple[str, str]]:
    """Return the words that differ, as (heard in lower case, said), without punctuation."""
    before, after = (re.findall(r"\w+(?:['\u2019-]\w+)*", text) for text in (heard, spoken))
    old, new = ([word.lower() for word in words] for words in (before, after))
    found = []
    for kind, a, b, c, d in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if kind == "replace" and b - a <= WORDS_AT_MOST and d - c <= WORDS_AT_MOST:
            found.append((" ".join(old[a:b]), " ".join(after[c:d])))
    return found


def _has(words: tuple[str, ...], word: str) -> bool:
    return word.casefold() in (known.casefold() for known in words)


def _one_line(name: str, value: Any) -> str:
    """Return a text with single spaces. Raises ControlError for another value."""
    if isinstance(value, str) and len(value) <= TEXT_LETTERS and is_text(value):
        text = " ".join(value.split())
        if text and text.replace(" ", "").isprintable():
            return text
    raise bad_request(f"{name}: expected a text of 1 to {TEXT_LETTERS} letters")
