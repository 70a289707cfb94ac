"""Phrases that Whisper writes where nobody speaks: it was trained on films' subtitles.

Collected from what users of Whisper report (openai/whisper discussions 679 and 928, and the
trackers of programs that use it). They only mark a transcript: no list is ever complete, and every
phrase in it is said by somebody some day.
"""

# ruff: noqa: RUF001 (letters of many scripts)

from __future__ import annotations

import re

from appliance.infer.joining import plain

CREDITS = re.compile(
    r"amaraorg|mooji|castingwords|steamteamextra|soustitreurcom|stephaniegeiges|dimatorzok"
    r"|qtss|soustitragest501|明镜与点点|明鏡與點點|优优独播|優優獨播"
)
"""Names of subtitle makers, without spaces and punctuation: nobody says them to a house."""
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
SAID_TOO = frozenset(
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
"""Just as often invented, and said in every house: known only where the model doubts."""


def is_known(text: str, *, doubtful: bool) -> bool:
    """True when the whole text, without case and punctuation, is a phrase that Whisper invents;
    `doubtful` when there is another sign that nobody spoke."""
    letters = plain(text)
    if letters in INVENTED or CREDITS.search(letters) or BROADCASTERS.fullmatch(letters):
        return True
    return doubtful and letters in SAID_TOO
