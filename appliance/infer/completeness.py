"""How long to wait in silence for more of a sentence: whether its text so far is a whole one.

Four things tell: what the decoder knows (`is_finished`), how the text ends (`is_open`), which
sentence was expected (`by_expectation`), and what this house has said before. All of it is about a
guess, the window that ends the utterance if nobody says more. Pure functions.
"""

from __future__ import annotations

import math
import re

from appliance.config import GateSettings, SegmenterSettings
from appliance.infer.gates import judge
from appliance.model import Endings
from appliance.records import Transcription, Window

SURE_LOGPROB = math.log(0.9)
"""Natural log-probability of end-of-text below which no text is surely whole."""
HOPELESS = 0.05
"""A text that is less likely to be right, 0..1, is not known to be whole: it is of other words."""
LONGEST_MS, MORE_MS = 1000, 400
"""What is plainly unfinished is waited for so long, or so much beyond the hang-over if that is
shorter."""
MOSTLY = 4
"""Said as a whole sentence so many times as often as it was the beginning of a longer one, a text
is taken for a whole one."""

EXPECTED, SURELY = 0.7, 0.9
"""Confidence from which an expected sentence counts as said, and from which its end is early."""

OPEN_WORDS = {
    "en": "a an the these those my your his our their its of to for from with at by about into "
    "onto between under than as and or but nor because if when while which whose what how is are "
    "am was were be i'm it's half past quarter",
    "de": "der die den dem des eine einen einem einer eines und oder aber dass weil wenn für von "
    "vom zum zur beim im ins am ans bei ohne gegen mein meine meinen meinem meiner dein deine "
    "deinen deinem deiner unser unsere unseren sehr als ist sind",
    "fr": "le la les un une des du de d' l' à au aux et ou mais dans sur pour par avec sans chez "
    "mon ma mes ta tes sa ses notre votre nos vos que car très est sont",
    "es": "el la los las un una unos unas de del a al y e o u pero en con sin por para mi tu su "
    "mis tus sus que muy sobre entre hasta desde es son",
    "it": "il lo la i gli le un uno una di del dello della dei degli delle a al allo alla ai agli "
    "alle da dal dalla in nel nello nella con sul sulla per tra fra e ed o ma che mio mia tuo tua "
    "suo sua è sono",
    "nl": "de een en of omdat mijn jouw onze hun te heel naar bij met is zijn",
    "pt": "o a os as um uma uns umas de do da dos das em no na nos nas por pelo pela para pra com "
    "sem e ou mas que meu minha teu tua seu sua ao à é são",
}
"""Words that end hardly any sentence: articles, possessives, conjunctions, prepositions that do not
end one ("lights on", "mach das Licht an" do)."""
_OPEN = {language: frozenset(words.split()) for language, words in OPEN_WORDS.items()}
_WORD = re.compile(r"[\w'-]+")
_GOES_ON = (*",;:-\u2013\u2014\u2026\u3001\u060c", "...")


def is_open(text: str, language: str) -> bool:
    """True where a text plainly goes on: it ends with a comma, a dash or dots, or with a word that
    ends hardly any sentence of its language (none are known of most languages)."""
    text = text.rstrip()
    if text.endswith(_GOES_ON):
        return True
    last = text.casefold().rpartition(" ")[2].strip(".!?¿¡\"'«»“”„")
    return last in _OPEN.get(language, ())


def by_expectation(result: Transcription) -> bool | None:
    """What an expected sentence that surely was said tells of the text.

    True: the text is that sentence, and no longer one is expected that begins so. None: the text is
    the sentence's beginning, such as "what time is" of "what time is it", or a longer one is
    expected. False: the text is no beginning of it, or nothing sure is known.
    """
    phrase = result.phrase
    if phrase is None or phrase.confidence < EXPECTED:
        return False
    expected, text = (_WORD.findall(one.casefold()) for one in (phrase.sentence, result.text))
    if expected[: len(text)] != text:
        return False
    whole = expected == text and not result.phrase_continues and phrase.confidence >= SURELY
    return True if whole else None


def is_finished(
    end_logprob: float, end_prior: float, endings: Endings, *, doubtful: bool
) -> bool | None:
    """What the decoder knows of a text: True where it surely is whole, False where it plainly is
    not, None between.

    `end_logprob` is the natural log-probability of end-of-text where the text ends, `end_prior`
    the same where nothing is heard (`Decoder.end_prior`). Of a `doubtful` text it is not said that
    it is unfinished: the language has nothing to say about words that were misheard.
    """
    if math.isinf(end_prior):  # no text, or one that is too long to ask
        return None
    if end_logprob >= SURE_LOGPROB and end_prior >= endings.sure:
        return True
    return False if end_prior < endings.open and not doubtful else None


def silence_ms(
    window: Window,
    result: Transcription,
    settings: SegmenterSettings,
    gates: GateSettings,
    *,
    whole: int = 0,
    longer: int = 0,
) -> int:
    """So much silence ends an utterance whose guess is this window, with this transcription:
    `early_ms` where it is surely whole, more than `hang_over_ms` where it plainly is not.

    `whole` and `longer` say how often the house has said this text and nothing more, and how often
    it has gone on after it: what was whole once is not waited for any longer, what was only ever
    the beginning is. A text that was expected (`by_expectation`) is never waited for longer than
    the hang-over. A guess that would be discarded says nothing. Who has paused in this sentence
    before, or speaks for long, is given the hang-over at least.
    """
    hang_over_ms = settings.hang_over_ms
    first = window.index == 1 and not window.continues
    early_ms = min(settings.early_ms, hang_over_ms) if first else hang_over_ms
    late_ms = max(hang_over_ms, min(LONGEST_MS, hang_over_ms + MORE_MS))
    if judge(result, gates, window.voiced_s):
        return hang_over_ms
    if whole and first:
        likely = whole >= MOSTLY * longer or (result.finished and whole >= longer)
        return early_ms if likely else hang_over_ms
    if longer and first:
        return late_ms
    expected = by_expectation(result)
    unfinished = result.finished is False or is_open(result.text, result.language)
    if unfinished and expected is False:
        return late_ms
    finished = result.finished and not unfinished and not result.confidence < HOPELESS
    return early_ms if expected or finished else hang_over_ms
