"""Gates: rules that discard or flag a window's transcription, without what it repeats.

The phrases are those that Whisper invents where nobody speaks, because it was trained on films'
subtitles; collected from its users' reports (openai/whisper discussions 679 and 928, and the
trackers of programs that use it). They only flag a transcript: no list is ever complete, and people
say every phrase in it now and then.
"""

# ruff: noqa: RUF001 (letters of many scripts)

from __future__ import annotations

import copy
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace

from appliance.config import GateSettings
from appliance.infer.joining import OverlapJoiner, plain
from appliance.records import Transcription, Window, likelihood

LOOP_REPEATS = 5
LOOP_TOKENS = 12
"""A loop: the same tokens this many times in a row, and this many tokens in all. People do say "no
no no no", but not for 12 tokens; a decoder that loops goes on for dozens."""
STUTTER_REPEATS, STUTTER_TOKENS = 3, 6
"""Fewer repeats than a loop, but more than people make: flagged and kept."""
NO_SPEECH_PROB, DOUBTFUL_LOGPROB, HOPELESS_LOGPROB = 0.45, -0.9, -2.4
"""From the first on, a window may be no speech; its text is doubtful if the mean log-probability of
its tokens is below the second. Below the third, 9 % per token, nothing is text any more."""
MOST_COMPRESSED = 2.4
"""Text with a greater compression_ratio is a loop (openai/whisper, transcribe.py)."""
CREDITS = re.compile(
    r"amaraorg|mooji|castingwords|steamteamextra|soustitreurcom|stephaniegeiges|dimatorzok"
    r"|qtss|soustitragest501|明镜与点点|明鏡與點點|优优独播|優優獨播"
)
"""Names of subtitle makers, without spaces and punctuation: nobody says them at home."""
BROADCASTERS = re.compile(
    r"(untertitel(ung)?|copyright)(imauftrag)?(des|der|von)?"
    r"(zdf|wdr|swr|ndr|mdr|ard|br|deutschenwelle)(fürfunk)?(\d{4})?|(wdr|swr|zdf|ndr)\d{4}"
)
"""The same of German broadcasters, with or without a year."""
INVENTED = frozenset(
    plain(phrase)
    for phrase in (
        "Thanks for watching",
        "Thank you for watching",
        "Thank you so much for watching",
        "Thanks for watching and see you next time",
        "Thanks for watching, see you in the next video",
        "See you in the next video",
        "I'll see you in the next video",
        "See you in the next one",
        "Please subscribe",
        "Please subscribe to my channel",
        "Like and subscribe",
        "Don't forget to like and subscribe",
        "Thank you for listening",
        "Subtitles by",
        "Subtitles made by the community",
        "Transcribed by",
        "Translated by",
        "To be continued",
        "Vielen Dank fürs Zuschauen",
        "Vielen Dank für's Zuschauen",
        "Danke fürs Zuschauen",
        "Vielen Dank für die Aufmerksamkeit",
        "Bis zum nächsten Video",
        "Abonniert den Kanal",
        "Merci d'avoir regardé cette vidéo",
        "Merci d'avoir regardé",
        "Merci d'avoir regardé la vidéo",
        "Abonnez-vous à la chaîne",
        "N'oubliez pas de vous abonner",
        "Sous-titrage Société Radio-Canada",
        "Gracias por ver el video",
        "Gracias por ver este video",
        "Muchas gracias por ver el video",
        "Suscríbete al canal",
        "Suscríbete",
        "Nos vemos en el próximo video",
        "Obrigado por assistir",
        "Obrigada por assistir",
        "Obrigado por assistir ao vídeo",
        "Inscreva-se no canal",
        "Legendas pela comunidade",
        "Grazie per aver guardato il video",
        "Grazie per la visione",
        "Iscriviti al canale",
        "Sottotitoli e revisione a cura di",
        "Bedankt voor het kijken",
        "Bedankt voor het kijken naar deze video",
        "Tack för att ni tittade",
        "Tack för att du tittade",
        "Takk for at du så på",
        "Takk for at dere så på",
        "Tak fordi I så med",
        "Kiitos kun katsoit",
        "Dziękuję za uwagę",
        "Dziękuję za oglądanie",
        "Dziękuję za obejrzenie",
        "Napisy stworzone przez społeczność",
        "Děkuji za pozornost",
        "Titulky vytvořil",
        "Titulky vytvořil JohnyX",
        "Feliratok",
        "Köszönöm, hogy megnézted",
        "Mulțumesc pentru vizionare",
        "Vă mulțumim pentru vizionare",
        "Ευχαριστώ που παρακολουθήσατε",
        "İzlediğiniz için teşekkür ederim",
        "İzlediğiniz için teşekkürler",
        "Abone olmayı unutmayın",
        "Altyazı M.K.",
        "Спасибо за просмотр",
        "Спасибо за внимание",
        "Продолжение следует",
        "Подписывайтесь на канал",
        "Подпишись на канал",
        "Редактор субтитров А.Синецкая Корректор А.Егорова",
        "Дякую за перегляд",
        "Дякуємо за перегляд",
        "اشتركوا في القناة",
        "شكرا على المشاهدة",
        "شكرا للمشاهدة",
        "ترجمة نانسي قنقر",
        "תודה על הצפייה",
        "ご視聴ありがとうございました",
        "ご清聴ありがとうございました",
        "ご覧いただきありがとうございます",
        "チャンネル登録をお願いいたします",
        "チャンネル登録よろしくお願いします",
        "次の動画でお会いしましょう",
        "시청해주셔서 감사합니다",
        "시청해 주셔서 감사합니다",
        "구독과 좋아요 부탁드립니다",
        "다음 영상에서 만나요",
        "감사합니다 다음 영상에서 만나요",
        "谢谢观看",
        "感谢观看",
        "謝謝觀看",
        "感謝觀看",
        "请不吝点赞 订阅 转发 打赏支持明镜与点点栏目",
        "字幕由社区提供",
        "中文字幕志愿者",
        "Cảm ơn các bạn đã theo dõi",
        "Cảm ơn các bạn đã xem video",
        "Hãy subscribe cho kênh",
        "Terima kasih telah menonton",
        "Terima kasih kerana menonton",
        "ขอบคุณที่รับชม",
        "देखने के लिए धन्यवाद",
    )
)
ALSO_SPOKEN = frozenset(
    plain(phrase)
    for phrase in (
        "you",
        "Thank you",
        "Thank you very much",
        "Thank you so much",
        "Bye",
        "Bye bye",
        "Vielen Dank",
        "Merci",
        "Gracias",
        "Obrigado",
        "Grazie",
        "Dank u wel",
        "Tack",
        "Dziękuję",
        "Спасибо",
        "ありがとうございました",
        "감사합니다",
        "谢谢",
        "谢谢大家",
        "Tot de volgende keer",
        "Até a próxima",
        "À la prochaine",
        "Hasta la próxima",
        "Bis zum nächsten Mal",
        "おやすみなさい",
    )
)
"""Invented as often, but also said in every home: they count only if the text is doubtful."""


def compression_ratio(text: str) -> float:
    """Return the UTF-8 length over the zlib size (Whisper's measure of repetition); 0 if empty."""
    data = text.encode()
    return len(data) / len(zlib.compress(data)) if data else 0.0


def is_loop(tokens: Sequence[int], least: int = LOOP_REPEATS, in_all: int = LOOP_TOKENS) -> bool:
    """True if anywhere the same run of tokens comes `least` times in a row, `in_all` tokens in all.

    Tokens, not words: Chinese, Japanese and Thai have no spaces.
    """
    for length in range(1, len(tokens) // least + 1):
        matching = 0
        for here in range(len(tokens) - length):
            matching = matching + 1 if tokens[here] == tokens[here + length] else 0
            repeats = matching // length + 1
            if repeats >= least and matching + length >= in_all:
                return True
    return False


def judge(transcription: Transcription) -> str | None:
    """Return why a transcription is discarded (no_speech, repetition, low_confidence); None: kept.

    A false text acts on a home, and a lost "yes" annoys, so each rule needs evidence that real
    speech does not give:
    - empty text: the model itself found nothing;
    - no-speech probability from NO_SPEECH_PROB on: only with low confidence, as in Whisper,
      because the token alone is often wrong about short words in noise;
    - loops: always, because a looping decoder is very sure of itself;
    - low log-probability alone: only far below the limit. Texts of low confidence are flagged
      (`is_doubtful`) and the subscriber decides: short answers often have low confidence.
    """
    doubted = transcription.avg_logprob < DOUBTFUL_LOGPROB
    if not transcription.text or (doubted and transcription.no_speech_prob >= NO_SPEECH_PROB):
        return "no_speech"
    if transcription.compression_ratio > MOST_COMPRESSED or is_loop(transcription.tokens):
        return "repetition"
    if transcription.avg_logprob < HOPELESS_LOGPROB:
        return "low_confidence"
    return None


def resolve_gates(gates: GateSettings, transcription: Transcription) -> GateSettings:
    """Return the gates for a text of another machine's model: limits that they leave to the model
    are those that it recommends."""
    left = {
        name: value for name, value in transcription.recommended.items() if getattr(gates, name) < 0
    }
    return replace(gates, **left) if left else gates


def is_doubtful(transcription: Transcription, gates: GateSettings) -> bool:
    """True for a transcription to flag as low_confidence: kept, but not safe to act on."""
    return likelihood(transcription) < gates.low_confidence


def is_invented(text: str, *, doubtful: bool) -> bool:
    """True if the whole text, without case and punctuation, is a phrase that Whisper invents;
    `doubtful` if something else shows that nobody spoke."""
    letters = plain(text)
    if letters in INVENTED or CREDITS.search(letters) or BROADCASTERS.fullmatch(letters):
        return True
    return doubtful and letters in ALSO_SPOKEN


def find_flags(transcription: Transcription, gates: GateSettings) -> tuple[str, ...]:
    """Return the flags of a transcription that is kept: low_confidence, unsure_to_act (more likely
    right than wrong, or of unknown confidence), repetition (it repeats itself), known_hallucination
    (nothing but a phrase that Whisper invents)."""
    gates = resolve_gates(gates, transcription)
    doubtful = is_doubtful(transcription, gates)
    silent = transcription.no_speech_prob >= NO_SPEECH_PROB
    sure = gates.act_confidence == 0 or likelihood(transcription) >= gates.act_confidence
    found = {
        "low_confidence": doubtful,
        "unsure_to_act": not doubtful and not sure,
        "repetition": is_loop(transcription.tokens, STUTTER_REPEATS, STUTTER_TOKENS),
        "known_hallucination": is_invented(transcription.text, doubtful=doubtful or silent),
    }
    return tuple(flag for flag, raised in found.items() if raised)


class Gates:
    """Applies the gates to the transcriptions of windows, in their order. One thread."""

    def __init__(self, gates: GateSettings) -> None:
        self._gates, self._joiner = gates, OverlapJoiner()

    def apply(
        self, window: Window, result: Transcription, recall: Callable[[], str] = str
    ) -> tuple[Transcription, str | None]:
        """Return the transcription with its flags and without what it repeats of the window before;
        and why it is discarded, if it is (`judge`).

        A window that says nothing new is a `repetition`. `recall` returns the text of the window
        before if this process has not seen it.
        """
        if reason := judge(result):
            return result, reason
        text = self._joiner.remove_overlap(window, result.text, recall)
        flags = (*result.flags, *find_flags(result, self._gates))
        return replace(result, text=text, flags=flags), None if text else "repetition"

    def preview(
        self, window: Window, result: Transcription, recall: Callable[[], str] = str
    ) -> str:
        """Return the text that `apply` would give, "" if it would discard it, without remembering
        it: the window may not be the next one."""
        trial = copy.copy(self)
        trial._joiner = copy.copy(self._joiner)
        kept, reason = trial.apply(window, result, recall)
        return "" if reason else kept.text
