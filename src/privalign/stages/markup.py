"""Markdown, HTML, JSON and LaTeX around an answer taken away, so that a grammar of plain English words can read it.

What remains of a formula is ▢, of a box its content between ⟦ and ⟧; a formula that is one letter, or begins with a letter in text
type and parentheses, becomes that letter.
"""

from __future__ import annotations

import html
import re
import unicodedata

from privalign.stages.fields import as_lines
from privalign.stages.languages import in_english

FORMULA, OPEN, CLOSE = "▢", "⟦", "⟧"

_TYPE = re.compile(
    r"\\(?:text|textbf|textit|textrm|textsf|texttt|mathrm|mathbf|mathit|mathsf|mathtt|mathbb|boldsymbol|bm|emph|underline|mbox|"
    r"hbox)\s*\{([^{}]*)\}"
)
_OLD_TYPE = re.compile(r"\\(?:begin|end)\{(?:center|quote|answer|flushleft)\}|\\(?:bf|rm|it|sf|tt|bfseries|displaystyle|large|Large)\b")
_BOX = re.compile(r"\\(?:boxed|fbox|framebox)\s*")
_SPACE = re.compile(r"\\(?:[ ,;:!]|quad\b|qquad\b|hspace\{[^}]*\})|~(?=\S)|\u00a0")
_ARROW = re.compile(r"\\(?:Rightarrow|implies|Longrightarrow|therefore)\b")
_SPANS = re.compile(r"\\\((.+?)\\\)|\\\[(.+?)\\\]|\$\$(.+?)\$\$|\$(?=\S)((?:[^$\n]{0,300}?\S)??)\$(?!\d)", re.DOTALL)
_PROSE = re.compile(r"(?<![\\{\w])[a-z]{2,} [a-z]{2,}")
_ONE_LETTER = re.compile(r"\s*(\(\s*[A-Za-z]\s*\)|\[\s*[A-Za-z]\s*\]|[A-Za-z][.)]?)\s*")
_WORDS = re.compile(r"\s*(?:⇒|[A-Za-z]{3,}[ :])[A-Za-z\s:.,()]*")
_CONCLUDED = re.compile(r"⇒\s*(\([A-Z]\))\s*$")
_LETTER_AND_MORE = re.compile(r"\s*(\([A-Z]\)|[A-Z][.:)])(?=\s)")
_TAG = re.compile(
    r"</?(?:b|strong|i|em|u|p|br|span|code|div|li|ul|ol|h[1-6]|think|thinking|reasoning|explanation|mark|"
    r"center)\b[^<>]*>",
    re.IGNORECASE,
)
_ROLE = re.compile(r"<\|(?:im_start|start_header_id|assistant|begin_of_text)\|>|\[/?INST\]|<s>|<start_of_turn>(?:model)?")
_TURN_END = re.compile(r"(?<=\S)\s*(?:<\|(?:im_end|eot_id|endoftext|end|end_of_text|return)\|>|</s>|<end_of_turn>|<eos>|<EOS_TOKEN>)")
_IN_ANGLES = re.compile(r"<{1,3} ?([A-Z]) ?>{1,3}")  # unless it is HTML
_IN_BRACES = re.compile(r"(^|[\s:])\{ ?([A-Za-z]) ?\}(?=[\s.]|$)")
_HEADING = re.compile(r"^ *#{1,6} ([^:\n]*[^\s:.!?]) *\n(?=\s*\S)", re.MULTILINE)  # of a section
_MARKED = re.compile(r"\bans(?:wer)?\b\s*[-:|>~=]+[\s:|>~=-]*(?=\(?[A-Z]\b)", re.IGNORECASE)
_FACE = re.compile(r"[ \t][:;]-?[)D](?=\s|$)")
_REPEATED = re.compile(r"([^\w.:\[\]])\1{2,}")  # so that no pattern meets a long run of marks; also blank lines
# letters in black circles and squares, which are no compatibility forms; of other pictures only ticks and crosses mean something
_SIGNS = {start + place: chr(65 + place) for start in (0x1F150, 0x1F170) for place in range(26)} | {
    code: None
    for span in (range(0x1F300, 0x1FB00), range(0xFE00, 0xFE10), range(0x2700, 0x27C0))
    for code in span
    if chr(code) not in "✓✔✅✗✘❌✖➔➜"
}
_BRACKETS = str.maketrans("【】〔〕", "[][]")
_STOPS = str.maketrans(dict.fromkeys("。।۔", ". "))


def plain(text: str) -> str:
    """The text in plain words: compatibility forms (full width, circled, bold) as ordinary letters, no emphasis, no quotes."""
    text = _TURN_END.split(_ROLE.sub(" ", text), maxsplit=1)[0]
    text = re.sub(r"\\n(?![a-z])", "\n", html.unescape(text))  # of texts that were encoded once more
    text = unicodedata.normalize("NFKC", text.translate(_SIGNS)).translate(_STOPS).replace("\r\n", "\n").replace("\\$", "¤")
    text = _boxes(_without_type(re.sub(r"~~[^~\n]+~~", " ", as_lines(_FACE.sub("", text)))))
    text = _SPANS.sub(_formula, text)
    text = _without_marks(_ARROW.sub(" ⇒ ", _SPACE.sub(" ", text)))
    return in_english(_MARKED.sub("answer: ", text))


def _without_type(text: str) -> str:
    """`\\text{…}` and its kin are their content; from the inside out."""
    text = _OLD_TYPE.sub("", text.replace("\\left", "").replace("\\right)", ")").replace("\\right]", "]"))
    while True:
        text, found = _TYPE.subn(r"\1", text)
        if not found:
            return text


def _boxes(text: str) -> str:
    """Every `\\boxed{…}`, also `\\boxed B`, as ⟦…⟧; of boxes in boxes the outer one. An unclosed box reaches to the line's end."""
    pieces, place = [], 0
    while match := _BOX.search(text, place):
        end, content = _braced(text, match.end())
        pieces += [
            text[place : match.start()],
            OPEN,
            _label_or_words(_SPACE.sub(" ", _BOX.sub("", content)).replace("\\{", "").replace("\\}", "").strip("{} ")),
            CLOSE,
        ]
        place = end
    return "".join([*pieces, text[place:]])


def _braced(text: str, start: int) -> tuple[int, str]:
    if text[start : start + 1] != "{":
        return min(start + 1, len(text)), text[start : start + 1]
    depth = 0
    for place in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if depth == 0:
            return place + 1, text[start + 1 : place]
        if text[place] == "\n":
            break
    return place, text[start + 1 : place]


def _formula(span: re.Match[str]) -> str:
    content = next(group for group in span.groups("") if group or span.groups("") == ("",) * 4)
    if OPEN in content:
        return "".join(re.findall(f"{OPEN}[^{CLOSE}]*{CLOSE}", content))
    if _PROSE.search(content) and span.group(4):  # two amounts of dollars
        return span.group()
    content = _ARROW.sub("⇒", _SPACE.sub(" ", content))
    if one := _ONE_LETTER.fullmatch(content):
        return one[1]
    if _WORDS.fullmatch(content):
        return content
    if concluded := _CONCLUDED.search(content):
        return f"{FORMULA} ⇒ {concluded[1]}"
    return label if (label := _label_or_words(content)) != content else FORMULA


def _label_or_words(content: str) -> str:
    """An option's letter and its text, which may be a formula; other content as it is."""
    more = _LETTER_AND_MORE.match(content)
    return f"{more[1]} {FORMULA}" if more else content


def _without_marks(text: str) -> str:
    text = re.sub(r"(?m)^\s*>{3,}|<{3,}\s*$", " ", text)
    text = _IN_ANGLES.sub(lambda angles: angles.group() if f"</{angles[1]}>" in text else f"({angles[1]})", text)
    text = _IN_BRACES.sub(r"\1(\2)", text)
    text = _HEADING.sub(r"\1:\n", _TAG.sub("", text))
    text = re.sub(r"\*\*|```\w*|`|(?<![A-Za-z0-9])__|__(?![A-Za-z0-9])", "", text)
    text = re.sub(r"(?<![\w*])([*_])([^\s*_](?:[^*_\n]*[^\s*_])?)\1(?![\w*])", r"\2", text)
    text = re.sub(r"[\"“”„«»「」『』《》〈〉‹›]", "", text).translate(_BRACKETS).replace("’", "'").replace("‘", "'")
    text = re.sub(r"(?<!\w)'([^'\n]{1,60})'(?!\w)", r"\1", text)
    text = re.sub(r"[\u2010\u2011]", "-", text)
    text = _REPEATED.sub(r"\1\1", re.sub(r"[^\S\n]+", " ", text))
    return "\n".join(_line(line) for line in text.split("\n")).strip()


def _line(line: str) -> str:
    """Without bullets, quote and heading marks; a table's row of two cells as `name: value`."""
    line = re.sub(r"^\s*(?:(?:[-*•+✓✔✅]|#{1,6}|>+)\s+)*", "", line).strip()
    row = re.fullmatch(r"\| ?([^|]+?) ?\| ?([^|]+?) ?\|", line)
    return f"{row[1]}: {row[2]}" if row else line
