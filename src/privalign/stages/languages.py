"""Formulas of other languages for an answer, word by word in English, so that one grammar reads them all.

A line is translated where it has one of a language's words for the answer, an option, or choosing; other lines stay.
"""

from __future__ import annotations

import re
import unicodedata

_TELLING = re.compile("answer|option|letter|correct|choose")  # the meanings that a line must have one of, to be in a language
_ALPHABETS: tuple[dict[str, str], ...] = (
    {  # German
        "answer": "antwort(?:möglichkeit)? lösung",
        "correct": "(?:richtig|korrekt|zutreffend)(?:e[nrs]?)?",
        "is wrong": "ist_(?:falsch|unzutreffend)",
        "wrong": "falsche?",
        "is not": "ist_nicht ist_weder kann_nicht",
        "is": "ist lautet muss_sein wäre",
        "so": "also daher somit folglich deshalb demnach",
        "I choose": "ich_(?:wähle|nehme|entscheide_mich_für|tippe_auf|würde)",
        "because": "weil da denn",
        "the": "die der das",
        "or": "oder",
        "and": "und",
    },
    {  # French
        "answer": "réponse",
        "letter": "lettre",
        "correct": "(?:bonne|correcte|juste|exacte)",
        "is not": "n'est_pas",
        "is wrong": "est_(?:fausse?|incorrecte?)",
        "is": "est serait",
        "so": "donc ainsi",
        "I choose": "je_(?:choisis|réponds|sélectionne)",
        "because": "car puisque",
        "or": "ou",
        "and": "et",
        "it is": "(?:il_s'agit|c'est)(?:_donc)?(?:_bien)?(?:_de)?",
        "the": "la le les",
    },
    {  # Spanish
        "answer": "respuesta solución",
        "option": "opción alternativa inciso",
        "letter": "letra",
        "correct": "correct[ao] verdader[ao] adecuad[ao]",
        "is not": "no_es",
        "is wrong": "es_(?:incorrect[ao]|fals[ao])",
        "is": "es sería",
        "so": "por_lo_tanto por_tanto entonces así_que",
        "I choose": "elijo escojo selecciono",
        "because": "porque ya_que pues",
        "or": "o",
        "and": "y",
        "the": "la el",
    },
    {  # Portuguese
        "answer": "resposta gabarito",
        "option": "opção alternativa",
        "letter": "letra",
        "correct": "corret[ao] cert[ao]",
        "is not": "não_é",
        "is wrong": "(?:é|está)_(?:incorret[ao]|errad[ao]|fals[ao])",
        "is": "é está seria",
        "so": "portanto logo assim",
        "I choose": "escolho (?:eu_)?marco",
        "because": "porque pois",
        "or": "ou",
        "and": "e",
        "the": r"[ao](?=\s+(?:resposta|opção|alternativa|letra|corret|\(?(?-i:[A-Z])\b))",
    },
    {  # Italian
        "answer": "risposta soluzione",
        "option": "opzione alternativa",
        "letter": "lettera",
        "correct": "corrett[ao] giust[ao] esatt[ao]",
        "is not": "non_è",
        "is wrong": "è_(?:errat[ao]|sbagliat[ao]|fals[ao])",
        "is": "è sarebbe",
        "so": "quindi dunque perciò pertanto",
        "I choose": "scelgo seleziono",
        "because": "perché poiché",
        "or": "o",
        "and": "e",
        "the": "la il",
    },
    {  # Dutch
        "answer": "antwoord oplossing",
        "option": "optie",
        "correct": "juiste? goede? correcte",
        "wrong": "onjuist fout",
        "not": "niet",
        "so": "dus daarom",
        "I choose": "ik_kies",
        "because": "omdat want",
        "or": "of",
        "and": "en",
        "the": "het",
    },
    {  # Danish, Norwegian, Swedish
        "answer": "svar(?:et)?",
        "option": "alternativ(?:et)? valmulighed",
        "correct": "(?:rätta?|korrekta?|riktiga?|riktige|korrekte|rigtige?)",
        "wrong": "fel feil forkert",
        "not": "inte ikke",
        "is": "är er",
        "so": "alltså altså därför derfor",
        "I choose": "(?:jag|jeg)_(?:väljer|velger|vælger)",
        "because": "eftersom fordi",
        "or": "eller",
        "and": "och og",
        "the": "det",
    },
    {  # Finnish, Hungarian, Romanian, Greek
        "answer": "vastaus válasz megoldás răspuns(?:ul)? απάντηση",
        "option": "vaihtoehto varianta επιλογή",
        "correct": "oikea helyes corect[ă]? σωστή",
        "not": "ei nem nu δεν",
        "is": "on este είναι",
        "because": "koska mert deoarece γιατί",
        "or": "tai vagy sau ή",
        "and": "ja és και",
        "the": "az? η",
    },
    {  # Polish, Czech
        "answer": "odpowied(?:ź|zią) odpověď",
        "option": "opcja možnost",
        "correct": "prawidłow[aą] poprawn[aą] właściw[aą] správná",
        "is wrong": "nie_jest_(?:poprawn|prawidłow|właściw)[aą] není_správná",
        "not": "nie není",
        "is": "to jest je brzmi",
        "so": "więc zatem tedy proto",
        "I choose": "wybieram volím",
        "because": "ponieważ bo protože",
        "or": "lub albo nebo",
        "and": "i oraz a",
    },
    {  # Russian, Ukrainian, Bulgarian
        "answer": "ответ(?:ом)? відповідь отговор(?:ът)?",
        "option": "вариант(?:ом)? варіант",
        "letter": "буква",
        "correct": "(?:правильн|верн|вірн|правил)(?:ый|ым|ая|ий|а|о|ен)",
        "is wrong": "(?:неправильн|неверн)(?:ый|ая|о|а) неверен неправилен",
        "not": "не",
        "is": "это_— это є е является",
        "so": "следовательно поэтому значит итак отже тому",
        "I choose": "(?:я_)?(?:выбираю|обираю|избирам)",
        "because": "потому_что так_как поскольку бо",
        "or": "или або",
        "and": "и і",
    },
    {  # Turkish
        "answer:": "cevab?p?(?:ı|ımız|ım)? yanıt(?:ı)?",
        "option": "seçenek şık",
        "correct": "doğru",
        "is wrong": "değil(?:dir)? yanlış(?:tır)?",
        "is": "olarak",
        "so": "bu_nedenle dolayısıyla",
        "or": "veya ya_da",
        "and": "ve",
        "": "şıkkı(?:dır)? seçeneği(?:dir)? 'd[iı]r 't[iı]r",
    },
    {  # Indonesian, Malay
        "answer": "jawaban(?:nya)? jawapan",
        "option": "pilihan opsi",
        "correct": "(?:yang_)?(?:benar|tepat|betul)",
        "not": "bukan",
        "is": "adalah ialah",
        "so": "jadi maka",
        "I choose": "saya_memilih",
        "because": "karena kerana",
        "or": "atau",
        "and": "dan",
    },
    {  # Vietnamese
        "answer": "đáp_án câu_trả_lời",
        "correct": "đúng chính_xác",
        "not": "không(?:_phải)?",
        "is": "là",
        "so": "vậy do_đó",
        "I choose": "(?:ta_|tôi_)?chọn",
        "because": "vì",
        "or": "hoặc",
        "and": "và",
    },
    {  # Arabic, Persian, Hebrew
        "answer": "(?:ال)?(?:إجابة|جواب|حل) پاسخ (?:ה)?תשובה",
        "option": "(?:ال)?(?:خيار|اختيار) گزینه",
        "correct": "(?:ال)?صحيحة? (?:ה)?נכונה صحیح درست",
        "not": "ليست? לא",
        "is": "هي هو היא הוא",
        "or": "أو או یا",
        "and": "و",
    },
)
_RUNNING: tuple[dict[str, str], ...] = (  # scripts without spaces between words, or whose marks are no letters to `re`
    {  # Chinese
        "": "(?<=[A-J)])\\s?(?:选项|選項|项|項)",
        "not": "(?:不能?|不应该?|不可)[选選]",
        "is not": "不是 不为 并非",
        "is wrong": "(?:是|為|为)?(?:错误的?|錯誤的?|不正确的?|不正確的?|不对|不對|错的?)",
        "correct answer": "正确(?:答案|选项|的是) 正確(?:答案|選項|的是) 最佳(?:答案|选项) 最终答案",
        "option": "选项 選項",
        "answer": "答案 答",
        "is correct": "(?:是|為|为)?(?:正确的?|正確的?|对的)",
        "is": "应该?[是为] 應該?[是為] [是为為]",
        "so": "因此 所以 故 综上所述 綜上所述 由此可知",
        "I choose": "应?选择? 應?選擇?",
        "because": "因为 因為 由于",
        "or": "或者?",
        "and": "[和与]",
    },
    {  # Japanese
        "is wrong": "では?(?:ありません|ない|なく) じゃない (?:が|は)(?:間違い|誤り|不正解)(?:です)?",
        "is correct": "[がはも](?:正解|正しい|正答)(?:です|である)?",
        "correct answer": "正解 正答 正しい(?:答え|選択肢) 最も適切なのは",
        "answer": "答え 解答 回答",
        "option": "選択肢",
        "so": "したがって よって 従って だから",
        "I choose": "選ぶ",
        "or": "または か",
        "and": "と",
        "is": "[はがの]",
        "": "です である だ",
    },
    {  # Korean
        "is wrong": "[가이은는]?_?(?:아닙니다|아니다|아니라|아니에요|틀렸습니다|틀리다)",
        "is correct": "[가이]_?(?:정답|맞습니다|옳다)(?:입니다|이다)?",
        "answer": "정답 답 해답",
        "so": "따라서 그러므로",
        "or": "또는",
        "and": "[와과]",
        "": "입니다 이다 번",
        "is": "[은는이]",
    },
    {  # Hindi, Bengali
        "is wrong": "(?:नहीं|गलत)_?(?:है)? নয়",
        "answer:": "उत्तर जवाब উত্তরঃ? ",
        "option": "विकल्प",
        "correct": "सही সঠিক",
        "or": "या",
        "and": "और",
        "": "है হলো হল",
    },
    {  # Thai
        "is not": "ไม่ใช่",
        "answer": "คำตอบ ตอบ",
        "option": "ตัวเลือก ข้อ",
        "correct": "ที่ถูกต้อง ถูกต้อง",
        "is": "คือ เป็น",
        "because": "เพราะ",
        "or": "หรือ",
        "and": "และ",
    },
)


class _Language:
    """Its words, as patterns for text in small letters: of what tells the language, and of all that is translated."""

    def __init__(self, words: dict[str, str], bounds: str) -> None:
        self._english = list(words)
        groups = [_any(forms) for forms in words.values()]
        self.cues = "|".join(group for english, group in zip(words, groups, strict=True) if _TELLING.search(english))
        self._cue = re.compile(bounds % self.cues)
        self._words = re.compile(bounds % "|".join(f"({group})" for group in groups), re.IGNORECASE)

    def share(self, line: str) -> int:
        """How many letters of a line are in words of the language; 0 where none of the words tells it."""
        return sum(len(word.group()) for word in self._words.finditer(line)) if self._cue.search(line.lower()) else 0

    def translated(self, line: str) -> str:
        return re.sub(" +", " ", self._words.sub(lambda word: f" {self._english[(word.lastindex or 1) - 1]} ", line)).strip()


def _any(forms: str) -> str:
    return "|".join(form.replace("_", " ") for form in unicodedata.normalize("NFKC", forms).split())


_WORD, _ANYWHERE = r"(?:(?<![^\W\d_])|(?='))(?:%s)(?![^\W\d_])", "(?:%s)"
_LANGUAGES = [*(_Language(words, _WORD) for words in _ALPHABETS), *(_Language(words, _ANYWHERE) for words in _RUNNING)]
_FOREIGN = re.compile(
    "|".join(
        bounds % "|".join(language.cues for language in languages)
        for bounds, languages in ((_WORD, _LANGUAGES[: len(_ALPHABETS)]), (_ANYWHERE, _LANGUAGES[len(_ALPHABETS) :]))
    )
)


def in_english(text: str) -> str:
    """The text, with the words that matter in English on lines that are in another language."""
    if _FOREIGN.search(text.lower()) is None:
        return text
    return "\n".join(map(_line, text.split("\n")))


def _line(line: str) -> str:
    share, best = max((language.share(line), -place) for place, language in enumerate(_LANGUAGES))
    return _LANGUAGES[-best].translated(line) if share else line
