"""The utterance history: how often a text was a whole sentence, and how often only its beginning.

It is kept in memory only, read from the newest transcripts of the log, and forgotten with them.
"""

import re
import sqlite3
from bisect import bisect_left, insort
from collections.abc import Iterable
from typing import NamedTuple

from appliance.errors import StoreError
from appliance.records import Transcript
from appliance.store import tables
from appliance.store.database import Database
from appliance.store.fallback import DatabaseWithFallback

NEWEST = 2000
"""Sentences that are kept: a month of commands."""
LONGEST = 120
"""Letters of a sentence at most: 0.6 MB for all of them, 0.4 MB for commands."""
_WORDS = re.compile(r"[\w']+")


class Sentence(NamedTuple):
    """The fields of a transcript that the history needs."""

    utterance_id: str
    window: int
    windows: int | None
    text: str
    continues: str | None


class UtteranceHistory:
    """The newest sentences, without case and punctuation. Owned by one thread."""

    def __init__(self, sentences: Iterable[Sentence] = (), most: int = NEWEST) -> None:
        self._most = most
        self._words: dict[str, str] = {}
        """The words of each utterance, the oldest first."""
        self._sorted: list[str] = []
        for sentence in sentences:
            self.add(sentence)

    def add(self, sentence: Sentence | Transcript) -> None:
        """Add the next transcript.

        If it continues an earlier utterance, both become one sentence, because the earlier one was
        not complete. Utterances of several windows are not kept.
        """
        words = " ".join(_WORDS.findall(sentence.text.casefold()))
        if sentence.continues:
            begun = self._forget(sentence.continues)
            words = f"{begun} {words}" if begun and words else ""
        alone = sentence.window == sentence.windows == 1
        if not (alone and words and len(words) <= LONGEST):
            return
        self._forget(sentence.utterance_id)
        self._words[sentence.utterance_id] = words
        insort(self._sorted, words)
        if len(self._words) > self._most:
            self._forget(next(iter(self._words)))

    def count(self, text: str) -> tuple[int, int]:
        """Return how often `text` was a whole sentence, and how often a longer one began so."""
        words = " ".join(_WORDS.findall(text.casefold()))
        if not words:
            return 0, 0
        # a single word (or a language without spaces) may also go on within the word
        begins = f"{words} " if " " in words else words
        first = bisect_left(self._sorted, words)
        whole = bisect_left(self._sorted, words + "\0") - first
        beginning = bisect_left(self._sorted, begins)
        end = bisect_left(self._sorted, begins + "\U0010ffff")
        return whole, end - beginning - (whole if begins == words else 0)

    def _forget(self, utterance_id: str) -> str:
        """Remove a sentence and return its words; "" if it is unknown."""
        words = self._words.pop(utterance_id, "")
        if words:
            del self._sorted[bisect_left(self._sorted, words)]
        return words


class LogHistory:
    """The utterance history of an open log, read at the first question. Owned by one thread."""

    def __init__(self, database: Database | DatabaseWithFallback) -> None:
        self._database = database
        self.utterances = UtteranceHistory()
        self._version: tuple[sqlite3.Connection, int] | None = None
        """The connection and file version that `utterances` came from; None: not read."""

    def count(self, text: str) -> tuple[int, int]:
        """Return how often `text` was a whole sentence in the log, and how often a longer one began
        with it, whatever their case and punctuation.

        Deleted transcripts do not count, whichever process deletes them. Raises StoreError.
        """

        def read(connection: sqlite3.Connection) -> tuple[int, int]:
            version = connection, tables.number(connection, "PRAGMA data_version")
            if self._version != version:
                self.utterances, self._version = UtteranceHistory(_sentences(connection)), version
            return self.utterances.count(text)

        return self._database.read("read the log", read)

    def add(self, transcript: Transcript) -> None:
        """Add a transcript that was stored, if the history is in memory."""
        if self._version:
            self.utterances.add(transcript)

    def forget(self) -> None:
        """Forget everything; the next question reads the log again."""
        self.utterances, self._version = UtteranceHistory(), None

    def poll(self) -> None:
        """Forget what another process has deleted. Raises nothing."""
        if self._version:
            try:
                self.count("")
            except StoreError:
                self.forget()


def _sentences(connection: sqlite3.Connection) -> list[Sentence]:
    rows = connection.execute(
        'SELECT utterance_id, "window", windows, text, continues FROM transcripts '
        "WHERE typeof(text) = 'text' ORDER BY seq DESC LIMIT ?",
        (NEWEST,),
    )
    return [Sentence(*row) for row in rows][::-1]
