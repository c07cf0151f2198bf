"""The letter that an answer to a multiple-choice question settles on.

The text is read as statements, in order: of every letter that it mentions, the words around tell whether the letter is stated as the
answer there (`wording` has the words). The last statement counts. One that names several letters or one that is not offered leaves
the answer open, as does a retraction, until the next. Where nothing is stated, the one letter that sentences speak for is the answer.
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain

from privalign.stages import wording
from privalign.stages.markup import CLOSE, FORMULA, OPEN, plain
from privalign.stages.tasks import ALPHABET, USUAL

KNOWN = 10  # letters that are read as options at least: one that is not offered is a statement too
LONGEST = 20_000  # letters from the end of an answer that are looked at


def letter_of(answer: str, options: int = USUAL) -> str | None:
    """The letter that the text chooses among the first `options` of the alphabet; None: none, several, or it cannot be told."""
    text = _Text(plain(_end_of(answer)), max(options, KNOWN))
    events = text.events()
    stated: _Event | None = None
    for event in events:
        if stated is not None and wording.NEXT_QUESTION.search(text.whole, stated.end, event.start):
            break  # a base model that goes on with questions of its own
        stated = event.after(stated, text.whole)
    if stated is not None and wording.in_doubt(text.whole[stated.end :]):
        return None
    letter = stated.letters if stated else "" if events else text.favoured()
    return letter if len(letter) == 1 and ALPHABET.index(letter) < options else None


def _end_of(answer: str) -> str:
    """The part that is read; where it is not all, a word stands for the rest, so that no letter seems to begin the text."""
    return answer if len(answer) <= LONGEST else f"cut {answer[-LONGEST:].partition(' ')[2]}"


@dataclass(frozen=True, slots=True)
class _Event:
    """Something said about the answer.

    Args:
        letters: several leave it open. kind: statement; judged ("B is correct") or box, which add to one of their kind; alternative
            ("or perhaps B"), which adds to any; closing, a mention at the end of the last sentence, and label, a last line that is an
            option, for where nothing stands; retraction, of a letter or of what was said.
    """

    start: int
    end: int
    letters: str
    kind: str = "statement"

    def after(self, stated: _Event | None, text: str) -> _Event | None:
        """What stands after this, where `stated` stood before."""
        if stated is None:
            return None if self.kind == "retraction" else self
        if wording.OF_ITS_TEXT.fullmatch(text, stated.end, self.start):
            return stated
        if self.kind == "label" or (self.kind == "retraction" and not self._retracts(stated, text)):
            return stated
        if self.kind == "retraction":
            return None
        if self.kind == "closing" and stated.letters and not wording.TURN_BACK.search(text[stated.end : self.start]):
            return stated
        if self.kind in (stated.kind, "alternative") and self._adds(text[stated.end : self.start]):
            return replace(self, letters=_union(self.letters, stated.letters))
        return self

    def _adds(self, between: str) -> bool:
        """ "A is correct. C is correct.": both; "A is correct. No, wait: C is correct.": the last."""
        if self.kind == "box":
            return wording.BOX_JOIN.fullmatch(between) is not None
        return self.kind in ("judged", "alternative") and not wording.TURN_BACK.search(between)

    def _retracts(self, stated: _Event, text: str) -> bool:
        """What was said is the statement, unless another letter was spoken of since."""
        if self.letters:
            return self.letters == stated.letters
        spoken = re.findall(r"\b[B-HJ]\b|(?<=\()[A-Z](?=\))", text[stated.end : self.start])
        return all(letter in stated.letters for letter in spoken)


# ---- mentions: a letter or a list of letters, with what follows


@dataclass(frozen=True, slots=True)
class _Choice:
    """One letter or a list of them.

    Args:
        closed: in brackets, or with one behind. outermost: the text begins or ends with it.
        tail: what follows. "end" of a clause, a "because", the option's "text", or any "word"; "cut": the text's end, where an article
            may stand as well.
    """

    start: int
    end: int
    letters: str
    closed: bool
    capital: bool
    outermost: bool
    tail: str

    @property
    def settled(self) -> bool:
        """Whether it can end a statement: it is not an article, a pronoun, or a name in front of a noun."""
        return self.tail in ("end", "because") or (self.tail == "text" and (self.closed or (self.capital and self.letters not in "AI")))

    @property
    def marked(self) -> bool:
        """Whether it looks like an option's letter rather than a variable."""
        return self.capital or self.closed or (self.outermost and self.letters not in "AI")


_MENTION = re.compile(
    r"(?:(?<=\bis)|(?<=answer)|(?<=option)|(?<=choice))\(\s?(?P<stuck>[A-Za-z])\s?\)|"
    r"(?<![A-Za-z0-9_^\\'°|\]-])(?<![A-Za-z0-9]\.)(?<![K-Zk-z]/)(?<!\b[A-Za-z]\()"
    r"(?:\(\s?(?P<round>[A-Za-z])\s?\)|\[{1,3}\s?(?P<square>[A-Za-z])\s?\]{1,3}|\((?P<half>[A-Z])(?=[.:] )|(?P<closed>[A-Za-z])\)|"
    r"(?P<bare>[A-Za-z])(?![A-Za-z0-9_^']))"
)
_NAMED = re.compile(r"\b(?:option|choice|answer)\s+$", re.IGNORECASE)
_FULL_STOP = re.compile(r"[.,;:]")
_PRONOUN_REASON = re.compile(r"\s+(?:because|since|\()")


def _choices(text: str, known: int) -> list[_Choice]:
    joined: list[_Choice] = []
    for choice in _single(text, known):
        last = joined[-1] if joined else None
        if last and choice.tail != "maths" and _joined(text, last, choice):
            joined[-1] = replace(last, end=choice.end, letters=_union(last.letters, choice.letters), tail=choice.tail)
        else:
            joined.append(choice)
    return [choice for choice in joined if choice.tail != "maths"]


def _single(text: str, known: int) -> Iterator[_Choice]:
    for match in _MENTION.finditer(text):
        letter, closed = match[str(match.lastgroup)], match.lastgroup != "bare"
        if ALPHABET.index(letter.upper()) < known:
            tail = _tail(text, match.end(), letter, closed)
            if tail != "word" or letter.isupper() or wording.BEING.match(text, match.end()):
                outermost = match.start() == 0 or not re.search(r"\w", text[match.end() : match.end() + 200])
                yield _Choice(match.start(), match.end(), letter.upper(), closed, letter.isupper(), outermost, tail)


def _tail(text: str, end: int, letter: str, closed: bool) -> str:
    if wording.RUNNING_SCRIPT.match(text, end):
        return "end"
    if wording.MATHS.match(text, end) and not (text[end - 1] == ")" and wording.NUMBER.match(text, end)):  # (C)14, B) −1/2
        return "maths"
    if wording.CLAUSE_END.match(text, end):
        return "cut" if letter == "a" and not closed and not _FULL_STOP.match(text, end) else "end"
    if wording.IN_BRACKETS.match(text, end) and letter in "BCDEFGHJ":
        return "end"
    if wording.FUNCTION_WORD.match(text, end) and (closed or letter not in "iI" or _PRONOUN_REASON.match(text, end)):
        return "because"
    if wording.ADVERB.match(text, end) and (closed or letter not in "aAiI" or wording.LONE_ADVERB.match(text, end)):
        return "because"
    return "text" if closed or wording.OPTION_TEXT.match(text, end) else "word"


def _joined(text: str, last: _Choice, choice: _Choice) -> bool:
    """Whether a list goes on with this letter: not where it begins a clause of its own ("B, A is wrong")."""
    if last.closed and choice.closed and text[last.end : choice.start] == " ":
        return choice.tail == "end"
    if not wording.JOIN.fullmatch(text, last.end, choice.start):
        return False
    of_several = wording.OF_SEVERAL.search(text, max(0, last.start - 20), last.start) and wording.AND.match(text, last.end)
    return bool(wording.OR.match(text, last.end) or of_several) or (
        (choice.capital or choice.closed) and (choice.tail == "end" or wording.LISTED.match(text, choice.end) is not None)
    )


def _union(one: str, other: str) -> str:
    return "".join(sorted({*one, *other}))


# ---- statements

_BOX = re.compile(f"{OPEN}([^{OPEN}{CLOSE}]*){CLOSE}")
_STOP = re.compile(r"[.!?\n]")
_LINE_END = re.compile(r"(?: then| it is)?[.!) ]*(?:\n|$)|\. [A-Z\d][^.!?\n]*\.?\s*$")  # nothing, or the option's text
_SHORT = 60
_LONE = re.compile(r"\W*[A-Za-z]\W*")


class _Text:
    """An answer in plain words, and what it states."""

    def __init__(self, whole: str, known: int) -> None:
        self.whole = whole
        self._known = known
        self._words = _BOX.sub(lambda box: FORMULA * len(box.group()), whole)  # boxes speak for themselves
        ends = wording.SENTENCE.finditer(self._words)
        self._starts = [
            0,
            *(end.end() for end in ends if not wording.ABBREVIATED.search(self._words[max(0, end.start() - 5) : end.start()])),
        ]
        self._choices = _choices(self._words, known)
        self._places = [choice.start for choice in self._choices]

    def events(self) -> list[_Event]:
        """In order; where two are at one place, the surer one last."""
        return sorted(
            chain(self._labels(), self._said(), self._boxes(), self._refusals(), self._retractions()), key=lambda event: event.start
        )

    def favoured(self) -> str:
        """The letters that sentences speak well of, each without a word against it or another letter: for where nothing is stated."""
        return "".join(sorted({choice.letters for choice in self._choices if self._is_favoured(choice)}))

    def _is_favoured(self, choice: _Choice) -> bool:
        before, after = self._before(choice.start), self._after(choice.end)
        if self._asked(choice.end) or self._others(choice, choice.end + len(after)):
            return False
        if wording.AGAINST.search(f"{before} {after}") or wording.IN_CASE.search(before) or wording.CASE.search(after):
            return False
        if choice.tail == "end" and choice.marked and wording.FAVOUR_BEFORE.search(before):
            return True
        if wording.ONLY_THIS.search(before) and wording.VERB.match(after):
            return True
        named = choice.closed or _NAMED.search(before) or not before.strip()
        spoken = wording.FAVOUR_AFTER.match(after) or wording.WHAT_IT_SAYS.search(before) or wording.ITS_LAST.search(after)
        return bool(named and spoken)

    # boxes

    def _boxes(self) -> Iterator[_Event]:
        for box in _BOX.finditer(self.whole):
            content = wording.BOX_LEAD.sub("", box[1], count=1).strip()
            choice = next(iter(_choices(content, self._known)), None)
            denied = wording.DENIED.search(self.whole, max(0, box.start() - 40), box.start())
            if choice and choice.start == 0 and choice.settled and not denied and not self._asked(box.end()):
                yield _Event(box.start(), box.end(), choice.letters, "box")

    # sentences

    def _said(self) -> Iterator[_Event]:
        for choice in self._choices:
            if self._asked(choice.end):
                continue
            before = self._before(choice.start)
            if self._is_line(choice) or self._opens(choice) or self._stands_alone(choice, before) or self._follows(choice, before):
                aside = wording.ASIDE.search(before) and not self._is_stated(choice, before)
                yield _Event(choice.start, choice.end, choice.letters, "closing" if aside else "statement")
            elif self._is_marked_at_the_end(choice, before):
                yield _Event(choice.start, choice.end, choice.letters, "closing")
            elif choice.marked and choice.settled and wording.ALTERNATIVE.search(before):
                yield _Event(choice.start, choice.end, choice.letters, "alternative")
            elif (choice.marked or _NAMED.search(before)) and self._precedes(choice, before):
                yield _Event(choice.start, choice.end, choice.letters, "judged")

    def _refusals(self) -> Iterator[_Event]:
        """ "The answer is none of these." """
        for found in wording.NONE.finditer(self._words):
            if wording.STATED.search(self._before(found.start())) or wording.NONE_RIGHT.match(self._words, found.start()):
                yield _Event(found.start(), found.end(), "")

    def _follows(self, choice: _Choice, before: str) -> bool:
        """Whether the words before the letter make it the answer."""
        if wording.DENIED_AFTER.match(self._words, choice.end):
            return False
        stated = self._is_stated(choice, before)
        if stated or (choice.capital and self._surpasses(choice, before)):
            return True
        if not choice.settled:
            return False
        if self._is_it(choice, before) or self._is_matched(choice, before):
            return True
        return choice.marked and (bool(self._real(wording.CHOSEN, choice, before)) or self._is_concluded(choice, before))

    def _is_stated(self, choice: _Choice, before: str) -> bool:
        found = self._real(wording.STATED, choice, before) or self._real(wording.CORRECT, choice, before)
        if not found:
            return choice.settled and wording.HEADING.search(self._words[max(0, choice.start - 80) : choice.start]) is not None
        if wording.HEDGED.search(found) and len(choice.letters) == 1:
            return False
        colon = found.rstrip().endswith(":")
        word = choice.tail == "word" and ":" in found and choice.capital and choice.letters not in "AI"
        return choice.settled or word or (choice.tail == "cut" and (colon or _NAMED.search(before) is not None))

    def _surpasses(self, choice: _Choice, before: str) -> bool:
        """ "Among these, D has the highest boiling point." """
        follows = choice.tail == "end" or wording.SURPASSES.match(self._words, choice.end) is not None
        return follows and bool(self._real(wording.AMONG, choice, before))

    def _is_it(self, choice: _Choice, before: str) -> bool:
        found = wording.PRONOUN.search(before)
        if not found or not self._real(wording.PRONOUN, choice, before):
            return False
        if choice.tail == "text" and not (choice.closed and choice.capital and wording.ITSELF.fullmatch(before)):
            return False
        if wording.HEDGED.search(found["be"]) and len(choice.letters) == 1:
            return False
        return choice.closed or bool(found["noun"]) or (found["it"].lower() != "which" and choice.marked)

    def _is_matched(self, choice: _Choice, before: str) -> bool:
        found = wording.MATCHES.search(before)
        if not found or not self._real(wording.MATCHES, choice, before):
            return False
        return bool(found["noun"]) or (bool(found["sure"]) and choice.closed and choice.capital and choice.tail == "end")

    def _is_concluded(self, choice: _Choice, before: str) -> bool:
        """Whether the sentence, or its last clause, comes to the letter."""
        if choice.tail == "end" and (self._real(wording.ADJACENT, choice, before) or wording.REASONED.search(before)):
            return True
        if (choice.capital or choice.closed) and self._real(wording.BEST, choice, before) and not wording.LABELLED_THING.search(before):
            return True
        named = choice.closed and choice.capital and wording.OPTION_TEXT.match(self._words, choice.end)  # "hence (D) False, False"
        if choice.tail == "text" and named and any(self._real(form, choice, before) for form in (wording.THEREFORE, wording.YIELDING)):
            return True
        if choice.tail == "text":
            return before.rstrip().endswith(":") and bool(self._real(wording.THEREFORE, choice, before.rstrip(": ")))
        if choice.tail != "end" and not choice.closed and not _NAMED.search(before):
            return False
        discussed = wording.NAME.search(before) and wording.DISCUSSED.match(self._words, choice.end)
        forms = () if discussed else (wording.LIGHT, wording.COMMITTED, wording.THEREFORE, wording.LEFT)
        return any(self._real(form, choice, before) for form in forms) or self._is_value(choice, before)

    def _is_marked_at_the_end(self, choice: _Choice, before: str) -> bool:
        """Whether the last sentence ends with it, in brackets or named as an option."""
        ends = choice.tail == "end" or (choice.tail != "text" and (choice.closed or _NAMED.search(before)))
        plain = choice.marked and choice.settled and ends
        return bool(plain) and not wording.DENIED_AFTER.match(self._words, choice.end) and self._closes(choice, before)

    def _is_value(self, choice: _Choice, before: str) -> bool:
        """ "The answer is 4, option (B)" """
        found = wording.VALUE.search(before)
        if not found or not (found["noun"] or choice.closed) or not self._real(wording.VALUE, choice, before):
            return False
        return not (wording.LABELLED_THING.search(found["value"]) or wording.NO_VALUE.search(found["value"]))

    def _closes(self, choice: _Choice, before: str) -> bool:
        """Whether it stands, labelled or in brackets, at the end of the last sentence, which speaks of no other."""
        contrasted = wording.CONTRAST.match(self._words, choice.end)
        if len(choice.letters) > 1 or (not contrasted and re.search(r"\w", self._words[choice.end : choice.end + 200])):
            return False
        if wording.LABELLED_THING.search(before) or wording.MENTIONED.search(before):
            return False
        if before.rstrip().endswith(":"):
            return True
        if self._others(choice, choice.end) or wording.DENIED.search(before) or wording.REPORTED.search(before):
            return False
        if choice.letters not in "AI" and re.search(r"\s[–—-]\s*$", before):
            return True
        return bool(wording.APPENDED.search(before)) or (choice.closed and bool(before.strip()) and not re.search(r"\w\($", before))

    def _others(self, choice: _Choice, end: int) -> bool:
        """Whether other letters are spoken of from the sentence's beginning up to a place."""
        within = self._choices[bisect_left(self._places, self._sentence(choice.start)) : bisect_left(self._places, end)]
        return any(other is not choice and other.marked and other.letters not in "AI" for other in within)

    def _precedes(self, choice: _Choice, before: str) -> bool:
        """Whether the words after the letter make it the answer."""
        found = self._right(choice, before)
        if not found or wording.RIGHT_ABOUT.match(self._words, found.end()):
            return False
        before = wording.TURN.split(before)[-1]
        if not re.search("answer|option|choice|one$", found.group()) and wording.LABELLED_THING.search(wording.PREPOSED.sub("", before)):
            return False
        if wording.MODAL.search(found.group()) and (
            "(" in before or wording.UNREAL.search(before) or wording.UNREAL_AFTER.match(self._words, found.end())
        ):
            return False
        return not any(form.search(before) for form in (wording.SUPPOSED, wording.REPORTED, wording.DENIED, wording.OPEN_CLAUSE))

    def _right(self, choice: _Choice, before: str) -> re.Match[str] | None:
        found = wording.RIGHT.match(self._words, choice.end)
        if found and found["text"] and (not wording.RIGHT_PREFIX.fullmatch(before) or wording.NO_TEXT.search(found["text"])):
            found = None
        found = found or wording.RIGHT_OTHERWISE.match(self._words, choice.end)
        if not found and wording.MAKES.search(before):
            found = wording.MADE.match(self._words, choice.end)
        return found or (wording.DOES.match(self._words, choice.end) if wording.ONLY.search(before) else None)

    def _real(self, form: re.Pattern[str], choice: _Choice, before: str) -> str:
        """The words where the form stands before the letter, and is not supposed, reported, or denied."""
        found = form.search(before)
        if not found:
            return ""
        lead = wording.TURN.split(wording.GUESSING.sub(" ", before[: found.start()]))[-1]
        own = before[found.start("be") :] if "be" in form.groupindex else found.group()
        other = form is wording.STATED and wording.OTHER.search(lead)
        guards = [wording.SUPPOSED, wording.REPORTED, wording.DENIED]
        if form is wording.THEREFORE and wording.ARROW.search(found.group()):  # "is not a property of metals → (D)" denies something else
            guards.remove(wording.DENIED)
        if other or re.search(r"\bunless\b", lead, re.IGNORECASE) or any(guard.search(lead) for guard in guards):
            return ""
        if wording.NOT_WITHOUT_BUT.search(own) or wording.CONDITION.match(self._words, choice.end):
            return ""
        unreal = wording.UNREAL.search(lead) or wording.UNREAL_AFTER.match(self._words, choice.end)
        return "" if wording.MODAL.search(own) and unreal else found.group()

    # lines

    def _is_line(self, choice: _Choice) -> bool:
        """Whether the letter is all that its line says, and the line is not one of a list of letters."""
        start, end = self._line(choice)
        if not wording.LINE_PREFIX.match(self._words[start : choice.start]) or not wording.LINE_REST.match(self._words, choice.end):
            return False
        if not choice.capital and re.search(r"\w", self._words[:start] + self._words[end:]):
            return False
        above = self._words[self._words.rfind("\n", 0, max(0, start - 1)) + 1 : start]
        below = self._words[end + 1 : self._words.find("\n", end + 1) + 1 or None]
        label = wording.LABEL.match(above)
        if label and chr(ord(next(filter(None, label.group("round", "square", "bare", "short"))).upper()) + 1) == choice.letters:
            return False  # the list of options, cut off
        return not any(_LONE.fullmatch(line) and choice.letters not in line.upper() for line in (above, below))

    def _opens(self, choice: _Choice) -> bool:
        """Whether the text begins with the letter and its reason."""
        return (
            choice.start < 3 and not re.search(r"\w", self._words[: choice.start]) and bool(wording.REASON.match(self._words, choice.end))
        )

    def _stands_alone(self, choice: _Choice, before: str) -> bool:
        """Whether it is a sentence of its own behind another one, at the end of a line: "A? No. B." """
        if not choice.capital or before.strip() or not _LINE_END.match(self._words, choice.end):
            return False
        if choice.letters in "AI" and not choice.closed and choice.end == len(self._words):  # cut off behind an article
            return False
        start, _ = self._line(choice)
        return bool(self._words[start : choice.start].strip(" ("))

    def _labels(self) -> Iterator[_Event]:
        """The text's first or last line where it is an option with its text, and not one of the list of options; a list with one tick."""
        lines = _lines(self._words)
        labels = [label for place, (start, line) in enumerate(lines) if (label := _label(place, start, line))]
        for number, label in enumerate(labels):
            first, last = label.place == 0, label.place == len(lines) - 1 and not label.lists
            if (first or last) and not _is_listed(labels, number) and not self._is_no_answer(label):
                yield _Event(label.start, label.start + 1, label.letter, "statement" if first else "label")
        crossed = [wording.CROSSED.search(label.text) is not None for label in labels]
        ticked = [label for label, no in zip(labels, crossed, strict=True) if not no and wording.AFFIRMED.search(label.text)]
        if len(ticked) == 1 and (sum(crossed) > 1 or wording.ONLY_YES.fullmatch(ticked[0].text)):
            yield _Event(labels[-1].start, labels[-1].start, ticked[0].letter, "label")
        marks = list(wording.MARKED.finditer(self._words))
        if len(marks) > 1 and len(right := [mark for mark in marks if mark["yes"]]) == 1:
            yield _Event(marks[-1].start(), marks[-1].start(), right[0]["letter"], "label")

    def _is_no_answer(self, label: _Label) -> bool:
        if label.faint and (label.place > 0 or len(label.text) > _SHORT or wording.SENTENCE.search(label.text.rstrip(" .!"))):
            return True
        known = label.letter in ALPHABET[: self._known] and not self._is_one_of_several(label.start)
        return not known or self._asked(label.start + 2) or wording.REFUTED.search(_STOP.split(label.text)[0]) is not None

    def _is_one_of_several(self, start: int) -> bool:
        return any(choice.start <= start < choice.end and len(choice.letters) > 1 for choice in self._choices)

    # retractions

    def _retractions(self) -> Iterator[_Event]:
        for found in wording.retractions(self._words):
            yield _Event(found.start, found.end, found.letter, "retraction")

    # places

    def _before(self, place: int) -> str:
        """What the sentence says before a place."""
        return self._words[max(self._sentence(place), place - 240) : place]

    def _after(self, place: int) -> str:
        """What the sentence says from a place on."""
        stop = _STOP.search(self._words, place, place + 240)
        return self._words[place : place + 240 if stop is None else stop.start()]

    def _sentence(self, place: int) -> int:
        return self._starts[bisect_right(self._starts, place) - 1]

    def _line(self, choice: _Choice) -> tuple[int, int]:
        end = self._words.find("\n", choice.end)
        return self._words.rfind("\n", 0, choice.start) + 1, len(self._words) if end < 0 else end

    def _asked(self, end: int) -> bool:
        """Whether the sentence is a question."""
        stop = _STOP.search(self._words, end, end + 300)
        return stop is not None and stop.group() == "?"


def _lines(text: str) -> list[tuple[int, str]]:
    """The lines with words in them, and where they begin."""
    start, found = 0, []
    for line in text.split("\n"):
        if re.search(r"\w", line):
            found.append((start, line))
        start += len(line) + 1
    return found


@dataclass(frozen=True, slots=True)
class _Label:
    """A line that begins with an option's letter: its number among the lines, its place, and what it says of the option.

    Args:
        lists: its mark is a colon, as in lists of what is said of each option. faint: a small letter, a numeral, or a mark as in prose,
            which counts only before a short text.
    """

    place: int
    start: int
    letter: str
    text: str
    lists: bool
    faint: bool


def _label(place: int, start: int, line: str) -> _Label | None:
    found = wording.LABEL.match(line)
    if found is None:
        return None
    group = next(name for name in ("round", "square", "bare", "short") if found[name])
    letter = found[group]
    if group == "square" and line[found.end() - 1].islower():  # [A] decreases
        return None
    faint = letter.islower() or letter == "I" or group == "short"
    return _Label(place, start + found.start(group), letter.upper(), line[found.end() - 1 :], found["mark"] == ":", faint)


def _is_listed(labels: list[_Label], number: int) -> bool:
    """Whether the label before comes earlier in the alphabet, or the one behind later, on its line too."""
    label = labels[number]
    following = chr(ord(label.letter) + 1)
    if re.search(rf"[\s,;](?:[Oo]ption |[Cc]hoice )?\(?[{following}{following.lower()}][).:] \S", label.text):
        return True
    pairs = [labels[one : one + 2] for one in (number - 1, number) if one >= 0]
    return (label.place > 0 or label.letter == "A") and any(len(pair) == 2 and pair[0].letter < pair[1].letter for pair in pairs)
