"""How much silence ends an utterance: depends on whether its text so far is a complete sentence.

Four things decide: how the text ends (`is_open`), which sentence was expected (`by_expectation`),
the utterance history, and how long somebody has spoken. They are applied to the speculative window,
which ends the utterance if nobody says more. Pure functions.
"""

import re

from appliance.config import SegmenterSettings
from appliance.infer.gates import judge
from appliance.infer.sentences import plain
from appliance.records import EXPECTED_FROM, Transcription, Window

LONGEST_MS, MORE_MS = 1000, 400
"""Silence that ends an incomplete sentence: the first, or the hang-over plus the second if that is
shorter."""
MOSTLY = 4
"""A text in the utterance history is complete if it was a whole sentence this many times as often
as the beginning of a longer one."""
SURELY = 0.9
"""Confidence from which an expected sentence ends early."""
LISTED = -0.7
"""Mean log-probability (0.5) from which a text that is an expected sentence counts as one."""
LONGER_SHARE = 2 / 3
"""Share of the hang-over for an expected sentence with which a longer one begins."""
BRIEF_S, BRIEF_SHARE = 2.0, 0.75
"""Share of the hang-over for an utterance of less speech than the first: a command rather than a
reading. Chosen on half of the speakers of 91 sentences of people. Of 33 commands and orders none
has a pause of over 0.2 s between its words, of 58 readings two thirds; one reading more is cut.
"""

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
"""Words that hardly ever end a sentence: articles, possessives, conjunctions and some prepositions
(not "on": "lights on"; not German "an": "mach das Licht an")."""
_OPEN = {language: frozenset(words.split()) for language, words in OPEN_WORDS.items()}
_WORD = re.compile(r"[\w'-]+")
COPULAS = "is are am was were be ist sind est sont es son è sono zijn é são"
"""Open words that do end a sentence: "tell me what time it is"."""
_CONTINUES = (*",;:-\u2013\u2014\u2026\u3001\u060c", "...")


def is_open(text: str, language: str) -> bool:
    """True if a text is incomplete by its end: a comma, a dash, dots, or one of OPEN_WORDS of its
    language."""
    text = text.rstrip()
    if text.endswith(_CONTINUES):
        return True
    last = text.casefold().rpartition(" ")[2].strip(".!?¿¡\"'«»“”„")
    return last in _OPEN.get(language, ())


def is_begun(result: Transcription, *, breaks_off: bool = False) -> bool:
    """True if nothing may act on a text because it is only the beginning of a sentence: that of the
    expected one; or, without one, it `breaks_off`, or is open ("play the") and no question ("what
    is this for?")."""
    phrase, expected, words = result.phrase, list[str](), plain(result.text).split()
    if phrase and phrase.confidence >= EXPECTED_FROM:
        expected = plain(phrase.sentence).split()
    is_beginning = all(one == other for one, other in zip(words, expected, strict=False))
    if not is_beginning or words == expected or len(words) < len(expected):
        return is_beginning and words != expected
    asks = len(words) > 1 and result.text.endswith("?")
    ends = asks or (words[-1] in COPULAS.split() and not result.text.endswith(_CONTINUES))
    return (breaks_off and not expected) or (not ends and is_open(result.text, result.language))


def by_expectation(result: Transcription) -> str:
    """Return what the expected sentences say of the text.

    whole: it is one of them, or surely a hearing of one, and no longer one starts with that.
    longer: the same, but a longer one starts with it. begun: it is the beginning of a likely one,
    such as "what time is" of "what time is it". Otherwise "".
    """
    if result.is_listed and result.avg_logprob >= LISTED:
        return "longer" if result.text_continues else "whole"
    phrase = result.phrase
    if phrase is None or phrase.confidence < EXPECTED_FROM:
        return ""
    expected, text = (_WORD.findall(one.casefold()) for one in (phrase.sentence, result.text))
    if expected[: len(text)] == text and (expected != text or phrase.confidence < SURELY):
        return "begun"
    if phrase.confidence < SURELY:
        return ""
    return "longer" if result.phrase_continues else "whole"


def silence_ms(
    window: Window,
    result: Transcription,
    settings: SegmenterSettings,
    *,
    whole: int = 0,
    longer: int = 0,
) -> int:
    """Return the silence that ends the utterance of this speculative window with this result:
    `early_ms` if the text is complete, less than `hang_over_ms` if it may be, more if it is
    incomplete.

    `whole` and `longer` count this text in the utterance history: as a whole sentence, and as the
    beginning of a longer one. A text that was only ever a beginning is waited for; an expected
    sentence never waits longer than the hang-over. A result that would be discarded decides
    nothing. After a pause within the sentence, or from the second window on, the hang-over is the
    least.
    """
    hang_over_ms = settings.hang_over_ms
    first = window.index == 1 and not window.continues
    early_ms = min(settings.early_ms, hang_over_ms)
    late_ms = max(hang_over_ms, min(LONGEST_MS, hang_over_ms + MORE_MS))
    if judge(result):
        return hang_over_ms
    if first and (whole or longer):
        if not whole:
            return late_ms
        return early_ms if whole >= MOSTLY * longer else hang_over_ms
    expectation = by_expectation(result)
    unfinished = is_open(result.text, result.language) and expectation != "whole"
    if unfinished and not expectation:
        return late_ms
    if unfinished or not first:
        return hang_over_ms
    usual = BRIEF_SHARE if window.voiced_s < BRIEF_S else 1.0
    shares = {"whole": 0.0, "longer": LONGER_SHARE, "begun": 1.0, "": usual}
    return max(early_ms, int(hang_over_ms * shares[expectation]))
