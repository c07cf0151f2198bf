"""How answers to multiple-choice questions are worded: what stands before a letter, or after it, where it is the answer.

Patterns before a letter end where the letter begins. Of each only the words are here; `letters` weighs them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final


def _any(words: str) -> str:
    """One of the words; `_` is a space."""
    return "(?:" + "|".join(word.replace("_", r"\s+") for word in words.split()) + ")"


def _pattern(*pieces: str) -> re.Pattern[str]:
    return re.compile("".join(pieces), re.IGNORECASE)


# ---- lists of letters, and what follows a letter

JOIN: Final = _pattern(
    r"\s*(?:,\s*)?(?:[&/+,;、–—]|\b",
    _any("and/or and or nor through as_well_as but_also along_with together_with plus"),
    r"\b)\s*(?:also\s+)?(?:",
    _any("option choice answer"),
    r"\s+)?",
)
OF_SEVERAL: Final = _pattern(r"\b(?:one of|both|either|neither|between)\W*$")
AND: Final = _pattern(r"\s*,?\s*and\b")
OR: Final = _pattern(r"[\s,]*n?or\b|\s*/")
LISTED: Final = _pattern(r"\s+(?:depend\w+|", _any("are were both all and or as because since respectively"), r")\b")
MATHS: Final = re.compile(
    r"[A-Za-z0-9_^'({\[°%#\\†*]|-[A-Za-z0-9]|\s*[=+/^<>≤≥≠∪∩⊂⊆∈×·∘⊕⊗→⇌↔|\\−⇒*]|\s-\s(?:[A-Za-z\d][.,;)\s]|$)|\.[A-Za-z](?![a-z]{2})"
)
NUMBER: Final = re.compile(r"\d|\s+[−-]\d")
RUNNING_SCRIPT: Final = re.compile(r"\s*[^\W\d_a-zA-Z]")  # B입니다
CLAUSE_END: Final = re.compile(r"\s*(?:$|[.,;:!?)\]、]|\n|--|[–—]|\s-\s)")
IN_BRACKETS: Final = re.compile(r"\s+[(\[][^)\]\n]{2,}[)\]](?=\s*(?:[.,;:!\n]|$))")  # the option's text
FUNCTION_WORD: Final = re.compile(
    r"\s+(?:[(\[]|(?:as(?! an?\b)|to(?= me\b)|and(?= (?:not|that|this|it|the others?|the rest|none|no|[A-J]|\([A-J]\))\b)|"
    + _any(
        "because since which for where though although but whereas while by in on at from with after under even not per rather instead "
        "based according considering due"
    )
    + r")\b(?!-))"
)
ADVERB: Final = re.compile(
    r"\s+" + _any("given only obviously clearly here then indeed again too however therefore when now first assuming") + r"\b"
)
LONE_ADVERB: Final = re.compile(r"\s+(?:here|then|instead|again|too|now|indeed)\s*(?:[.,;!\n]|$)")
REASON: Final = _pattern(
    r"\s*[,;–—]?\s+\(?",
    _any(
        "because since as(?!_an?\\b) obviously clearly of_course i_think i_believe i_guess i_am_sure for_sure all_the_way "
        "final_answer definitely not and_not rather_than instead_of even_though"
    ),
    r"\b(?!-)",
)
OPTION_TEXT: Final = re.compile(r"\s+(?:[A-Z][a-z]|\d|▢|¤)")
BEING: Final = _pattern(r"\s+(?:is|was|are|seems|must|has)\b")

# ---- before the letter: the answer is …

ADJECTIVE: Final = _any(
    "correct right best only true proper valid appropriate likely false incorrect untrue invalid accurate sensible credited"
)
NOUN: Final = (
    r"(?:"
    + _any(
        "answers? ans winner solution options? choices? alternative letter selection pick response key conclusion verdict guess bet vote "
        "exception odd_one_out best_match best_fit best_description best_explanation"
    )
    + rf"|(?:closest|nearest)(?:\s+(?:one|match|value|fit|to\s[^.!?:;\n]{{1,40}}?))?|{ADJECTIVE} (?:one|statements?|claim)"
    + r"|(?:one|statement)(?=\s+(?:that|which))|(?:one|statement)\s+not\s+\w+)"
)
_GAP = (
    r"(?:\s+" + _any("choices? options? letter key here below above correct selected chosen left remaining standing") + r"){0,2}"
    r"(?:,?\s+" + _any("to for of corresponding among amongst from in based given with on out") + r"\s[^.!?:;=\n]{0,80}?)?"
    r"(?:,?\s+" + _any("that which who we i you") + r"(?:\s[^.!?:;=\n]{0,80}?)?)?"
    r"(?:,\s*" + _any("then therefore thus hence so of_course in_short finally again") + r"\s*,?)?"
)
_BE = (
    r"(?:\s*'s|\s+" + _any("is are was remains? stays? becomes? equals corresponds_to (?:seems|appears|turns_out|proves)_to_be") + r"|"
    r"\s+"
    + _any("must should would will has_to have_to ought_to can_only could might may")
    + r"\s+(?:"
    + _any("therefore thus then clearly still only")
    + r"\s+)?be|\s*[:=|\]→⇒–—-]{1,3}>?)"
)
_FILL = (
    r"(?:[\s:,;|>–—-]|\b"
    + _any(
        "therefore thus hence then clearly indeed actually most more likely probably definitely simply just still obviously also now "
        "in_fact of_course certainly surely presumably apparently instead going_to_be given_by denoted_by the either both correct "
        "right best single only one option choice letter answer alternative statement item number labell?ed lettered marked with is"
    )
    + r"\b)*"
)
STATED: Final = _pattern(rf"(?<![A-Za-z]){NOUN}{_GAP}(?P<be>{_BE}){_FILL}$")
CORRECT: Final = _pattern(rf"(?:^|[\s.])(?:correct|final|conclusion)\s*:{_FILL}$|^A:\s*$")
HEADING: Final = _pattern(r"(?:^|\n)[^\n]{0,40}\b(?:answer|option|choice)(?:\s+is)?\s*:?\s*\n\s*(?:option|choice)?\s*$")
ADJACENT: Final = _pattern(
    r"(?:^|\b",
    _any("so thus hence therefore the final correct my"),
    r"\s+)(?:answer|ans\.?|",
    _any("correct right best final"),
    r" (?:option|choice))\s+$",
)
REASONED: Final = _pattern(r"^\W*", _any("because since as given"), r"\b[^.!?\n]+,\s*(?:(?:option|choice|answer)\s+)?$")
VALUE: Final = _pattern(
    r"\b(?:answer|solution|result|(?:correct|right) (?:option|choice|value))",
    _GAP,
    _BE,
    r"(?P<value>(?:[^.!?\n]|\.\d){1,80}?)[\s,(]*",
    r"(?P<noun>(?:answer choice|option|choice|answer)\s+)?$",
)
BEST: Final = _pattern(
    r"\b", _any("correct right best only appropriate likely plausible accurate suitable"), rf"(?:\s+[\w-]+){{0,5}}{_BE}\s*$"
)
NO_VALUE: Final = _pattern(r"\b(?:not|than|since|because|as)\b")

# ---- before the letter: I choose …, therefore …, it is …, which matches option …

_SPEAKER = (
    r"(?:\b"
    + _any("i we let'?s let_us let_me please i'm we're (?:you|one)_(?:should|must) i'd i'll now therefore so thus hence")
    + r"(?:,[^,.]{1,30},)?\s+|^\W*(?!to\b|say|think|believe|guess|conclude|answer))"
)
CHOSEN: Final = _pattern(
    _SPEAKER,
    r"(?:(?:(?!initial|original|previous|earl|mistaken|wrong)[a-z]+ly|hereby|",
    _any("would will must should can now have_to am also still then had_to to going_to inclined_to like_to want_to"),
    r")\s+){0,4}",
    _any(
        "(?<=(?:'ll|ill)\\s)take (?<='d\\s)take (?<=would\\s)take prefer choose chose choosing pick(?:ed|ing)? select(?:ed|ing)? "
        "go(?:ing)?_(?:for|with) opt(?:ing)?_for say vote_for mark answer "
        "settle_(?:on|for) conclude guess think believe bet_on lean(?:ing)?_towards? stick(?:ing)?_with stay(?:ing)?_with circle "
        "tick finali[sz](?:e|ing) lock(?:ing)?_in submit(?:ting)?"
    ),
    r"(?:\s+that)?(?:\s+it(?:'s|\s+is|\s+must be|\s+should be))?(?:\s*[:,]|\s+",
    _any("the answer correct option choice letter is"),
    r")*\s*$",
)
THEREFORE: Final = _pattern(
    r"(?:(?:^|[\s,;:.(–—])",
    _any(
        "so thus therefore hence ergo consequently accordingly finally conclusion by_(?:process_of_)?elimination in_conclusion ∴ "
        "daher donc por_(?:lo_)?tanto portanto quindi"
    ),
    r"|(?:^|[^\W_]{2}|/\w|[\d.,;:)▢²³])\s*(?:⇒|=>|→|->)|(?:⇒|=>|→|->|=)(?=\s*(?:option|choice|answer)\b))\s*[,:]?\s*(?:",
    _any("the option choice answer it'?s? is must be letter"),
    r"\s+)*$",
)
YIELDING: Final = _pattern(
    r"(?:,\s*(?:giving|yielding)|\b(?:that|this|which|the) (?:\w+ )?(?:combination|pair|pattern|order|sequence) is)\s*$"
)
ARROW: Final = re.compile(r"⇒|→|[-=]>")
LEFT: Final = _pattern(
    r"\b(?:leaves?(?: us)?(?: with)?|leaving(?: us)?(?: with)?|elimination (?:gives|yields)|"
    r"(?:eliminating|excluding|ruling out)[^.;!?\n]{1,60}, (?:we|i)(?: then)? (?:get|have|obtain|arrive at)|(?:no|yes)\s?[,:–—-]|"
    r"what(?:'s| is) left|(?:nothing(?: else)?|none|no other|cannot be anything)(?: \w+){0,2} (?:but|other than)|actually,?|"
    r"instead,?|correction\s*:?|",
    _any("left_with remains? or_rather i_meant? on_reflection on_second_thoughts? make_that rather in_favou?r_of"),
    r"|settles? (?:it )?(?:on|for)|(?:answer|choice) changes?(?: from \(?[A-Z]\)?)? to|",
    r"(?:chang|revis|updat|switch|amend|adjust|correct)(?:e|es|ed|ing|s|) (?:my|the|our) (?:final )?"
    r"(?:answer|choice|mind|selection)(?: from \(?[A-Z]\)?)? to|not\b[^.!?\n]{1,40}\bbut(?: rather)?)",
    r"\s*(?:",
    _any("only just the option choice answer it is it's"),
    r"\s+)*$",
)
PRONOUN: Final = _pattern(
    r"\b(?P<it>it|that|this|which)(?P<be>'s|'d be| is,?|, then, is|\s+",
    _any("must_be should_be has_to_be was would_be can_only_be could_be might_be may_be"),
    r")(?:[\s,:]|\b",
    _any("therefore thus then clearly indeed actually most_likely probably definitely only just the answer correct letter"),
    r"\b)*(?P<noun>",
    _any("option answer_choice choice answer letter alternative"),
    r"\s+)?$",
)
ASIDE: Final = _pattern(r",\s*which(?:'s| is)\s+(?:(?:the )?(?:option|choice|answer)\s+)?$")
ITSELF: Final = _pattern(r"\W*(?:(?:so|thus|hence|therefore|and|then)\W+)?(?:it|that)(?:'s|\s+is)\s*")
HEDGED: Final = _pattern(r"\b(?:could|might|may)\b")
MATCHES: Final = _pattern(
    r"\b(?:(?P<sure>correspond(?:s|ing|ed)? (?:(?:exactly|precisely|directly|closely) )?(?:to|with)|i\.e\.,?|namely,?|"
    r"that is,?|match(?:es|ing|ed)?|",
    _any("agree(?:s|ing)?_with consistent_with coincides_with equivalent_to equals same_as identical_to align(?:s|ed)?_with closest_to"),
    r")|",
    _any(
        "listed_(?:as|under|in) given_(?:as|by|in) found_(?:as|in|under) described_(?:by|in) fits? points?_to supports? "
        "indicat(?:es|ing) represented_by gives? yields? leads?_(?:us_)?to shown_in captured_by "
        "stated_in expressed_(?:by|in) claimed_in giving is be"
    ),
    r")\s*(?:",
    _any("only exactly precisely best with to the given labell?ed marked called in as by"),
    r"\s+)*",
    r"(?P<noun>",
    _any("option answer_choice choice answer letter alternative statement"),
    r"\s+)?$",
)
APPENDED: Final = _pattern(r"[,([:–—-]\s*(?:(?:so|thus|hence) )?(?:the )?(?:answer|answer choice|option|choice)\s+$")
CONTRAST: Final = _pattern(r"\)?,?\s+", _any("not rather_than instead_of unlike as_opposed_to"), r"\b[^.!?\n]*\W*$")
MENTIONED: Final = _pattern(
    r"\b",
    _any("consider check try test examine compare look(?:ing)?_at evaluate analy[sz]e see regarding avoid about"),
    r"\s+(?:the )?(?:option|choice|answer)?\s*$",
)
LABELLED_THING: Final = _pattern(  # "see figure (B)"
    r"\b",
    _any(
        "parts? figures? fig\\.? eq(?:uation)?s?\\.? step case table section theorem lemma property condition set matrix panel vitamin "
        "type group statements? claim points? line graph curve plan class grade hepatitis at in of from see by than unlike not like and "
        "or event box row column assumption axiom phase region structure compound reaction excluded? excluding discard(?:ed)? "
        "reject(?:ed)? eliminated? ruled_out "
        "over against except why about with"
    ),
    r"\s*:?\s*$",
)

# a sentence of nothing but such words, or a clause of them with one of the second list, says no more than the letter: "so I would say B"
_LIGHT = _any(
    "so thus hence therefore ergo then ok okay well and now finally in conclusion short summary all overall ultimately on second "
    "thoughts? "
    "upon further reflection closer look after checking everything probably likely most maybe perhaps possibly presumably definitely "
    "certainly clearly obviously surely undoubtedly evidently it it's is that that's this must should would will be has_to have_to i "
    "we i'd i'll i'm we'll we're am are my our the final answer option choice letter pick guess selection vote best correct right only "
    "one response go going with for say think believe feel choose select take settle stick stay lean leaning towards? opt seems? "
    "looks? appears like indeed still just simply leaves leaving us left which gives yields by process of elimination inclined here "
    "actually things considered everything taken together"
)
LIGHT: Final = _pattern(
    rf"^(?=.*\w)(?!\W*(?:(?:say|now|checking)\b|(?:by|in|on|for|of|and|all|like|with)\W*$))(?:[\s,:;*(–—-]|\b{_LIGHT}(?![\w']))+$"
)
ALTERNATIVE: Final = _pattern(
    r"(?:^|[,;(–—])\W*",
    _any("or maybe perhaps possibly"),
    r"(?:[\s,]+",
    _any("maybe perhaps possibly even else it'?s? is option choice the answer"),
    r")*\s*$",
)
DISCUSSED: Final = _pattern(  # what follows a name is about the option
    r":|\s[–—-]\s+(?:incorrect|wrong|false|not?)\b|\s*\([^()\n]{1,80}\),?\s+(?!is\s+(?:therefore\s+)?(?:the\s+)?(?:\w+\s+)?"
    r"(?:correct|answer)\b(?!\s+(?:about|in|that)))[a-z]"
)
AMONG: Final = _pattern(
    r"(?:^|[.;]\s*)(?:\w+,? )?(?:out )?(?:of|among|amongst|from|between) (?:the|these|them|those|all|\(?[A-J]\)? and \(?[A-J]\)?)",
    r"[^.,;:!?\n]{0,40}[,:]\s*(?:(?:only )?(?:option|choice|answer)\s+)?$",
)
SURPASSES: Final = re.compile(r"\)?\s+(?:has|is|was|\w+s)\b")
OF_ITS_TEXT: Final = _pattern(r"[.):]?\s+", _any("both neither either only all_of none_of"), r"\b[^.;:!?\n]{0,20}")  # (D) Both A and B
NAME: Final = _pattern(r"(?:^|[,;:–—]|\b(?:and|but|while|whereas)\b)\W*(?:the\s+)?(?:option|choice)\s+$")
_COMMITTED = _any(
    "so thus hence therefore pick guess say think believe choose select settle stick opt must should seems looks "
    "leaves leaving elimination conclusion"
)
COMMITTED: Final = _pattern(rf"(?:^|[,;:(–—])(?!\W*(?:say|now)\b)(?=[^,;:(–—]*\b{_COMMITTED}\b)(?:[\s*-]|\b{_LIGHT}(?![\w']))+$")
MAKES: Final = _pattern(r"\bmak(?:es|ing)\s+(?:(?:option|choice|answer)\s+)?$")
MADE: Final = _pattern(r"\s*(?:(?:the|our|my)\s+)?(?:only\s+)?(?:correct|right|best|answer|choice|priority)\b")

# ---- after the letter: … is correct

RIGHT: Final = _pattern(
    r"(?P<text>\s*(?:[,:.(–—-]|(?<=\)))(?:[^.!?;\n]|\.\d){0,70}?)?[\s,)]{0,3}\b",
    _any("is are was must_be should_be has_to_be seems appears looks remains stands_as would_be"),
    r"\s+(?:",
    _any(
        "both all therefore thus clearly indeed also definitely obviously actually certainly then hence probably likely most_likely "
        "to_be in_fact"
    ),
    r"\s+)*(?:(?:the|our|my)\s+(?:",
    _any(
        "credited only single one best better most correct right final true valid possible remaining viable sensible likely accurate "
        "appropriate suitable and plausible strongest soundest closest safest clearest"
    ),
    r"\s+)*(?:ones?(?=[.,;!\s]|$)|(?<=e )statement|",
    _any(
        "possibility candidate response answers? options? choices? letter match fit best correct right winner description "
        "explanation representation argument evidence interpretation inference"
    ),
    r")|",
    r"what(?:'s| is) (?:actually |really )?(?:correct|right|true)|what (?:(?:the question|it) (?:is asking for|asks(?: for)?|wants)|"
    r"we (?:want|need|seek|were asked|are (?:looking for|after))|i(?:'d| would|'ll|) (?:choose|pick|say|go with|answer))|",
    r"(?:the )?(?:exception|odd one(?: out)?)|(?:the )?(?:only )?(?:statement|option|choice|answer|one|claim) (?:that|which)\b[^.!?\n]*|",
    r"(?:correct|right|best|(?:the )?most (?:accurate|appropriate|likely|plausible|suitable|reasonable))(?:\s+(?:answer|option|"
    r"choice|one)s?)?",
    r"(?=\s*(?:[.,;:!)–—\n]|$)|\s+",
    _any("because since as here for and by given due"),
    r"\b))",
)
RIGHT_OTHERWISE: Final = _pattern(
    r"\s+(?:wins|prevails|makes (?:the )?most sense|(?:fits|works) best)\b|",
    r"\s+correct(?=\s*(?:[.,;!]|$))|\s+(?:the )?(?:correct|right) (?:answer|option|choice)\b|",
    r"\s+as (?:the|our|my) (?:(?:only|final|correct|best|right|one) )*(?:answer|option|choice|possibility)\b|",
    r"\s+best \w+s\b|\s+is\b[^.!?;\n]{0,60}\b(?:therefore|thus|hence|so)\s+(?:is\s+)?(?:the\s+)?(?:correct|right)\b|"
    r"\s+it (?:is|must be|has to be|should be)(?=(?:, then)?\s*(?:[.!]|$))|",
    r"\s+(?:gives|lists|states|says|shows|has|contains|describes|matches|agrees with)\s+(?:(?:exactly|precisely)\s+)?(?:this|it|what we|"
    r"exactly|these|our)\b|\s+(?:is it|remains|does the job|fits the bill)(?=\s*[.!;]|$)|",
    r"\s+(?:matches|agrees with|fits|equals|corresponds to)\s+(?:this|the result|the value|the calculat\w+|the (?:correct )?answer|",
    r"our|the (?:computed|obtained|derived))\b|\s*[–—:,-]{1,2}\s*(?:this is |that is |is )?(?:the )?(?:(?:final|correct|"
    r"right) )+(?:answer|option|choice)",
)
RIGHT_PREFIX: Final = _pattern(r"\W*(?:(?:so|thus|hence|therefore|and|then)\W+)?(?:(?:the\s+)?(?:option|choice|answer)\s*)?")
NO_TEXT: Final = re.compile(r"\b(?:that|which|we|option|choice|not|is|are|so|because|[B-HJ])\b")
RIGHT_ABOUT: Final = _pattern(
    r"(?<!answer)(?<!option)(?<!choice)(?<!one)\s+",
    _any("in about that to_say"),
    r"\b|\s+",
    _any("as_far insofar only up_to except"),
    r"\b",
)
ONLY: Final = _pattern(r"\bonly(?:\s+(?:option|choice|answer|possibility))?\s*$")
DOES: Final = _pattern(r"\s+(?:(?:is (?:left|correct|right|true|possible|consistent|valid))|can be|[a-z]+s)\b")
OPEN_CLAUSE: Final = _pattern(r"\b(?:if|unless)\b|\b(?:whether|which(?!\s+(?:makes|means|leaves)))\b[^,]*$")
PREPOSED: Final = _pattern(r"\b(?:(?:see|find|note) that|and|or|by|that|not only|with|in)\s*$")
NONE: Final = _pattern(r"\b", _any("none neither unknown impossible undetermined all_of not_(?:given|listed|among)"), r"\b")
NONE_RIGHT: Final = _pattern(r"\bnone of (?:the|these|them)\b[^.!?\n]{0,40}\b(?:correct|right|match|fit|works?)")

# ---- in a sentence of no such form: what speaks for an option, or against it

_MINE = r"\b(?:i|we|i'm|i've|we've|my|our)\b[^.,;!?\n]{0,30}?\b"
_CHOOSE = _any(
    "chosen chose picked selected decided settled suspect confident_(?:in|of|about) convinced money sure_of landed answered "
    "concluded end_up_with ended_up_with arrive_at arrived_at land_on"
)
_FIT = _any("fits? match(?:es)? aligns? agrees? captures? corresponds? summari[sz]es? reflects? captured matched reflected")
FAVOUR_BEFORE: Final = _pattern(
    rf"(?:{_MINE}{_CHOOSE}|\b",
    _any(
        "(?:this|that|which|it)_(?:clearly_)?(?:means|implies|suggests|is|was) point(?:s|ed|ing)?_(?:\\w+_)?(?:to|at|towards?) "
        "agree_with "
        "matching as_in listed_(?:under|as|in) leads?_(?:us_|me_)?to brings?_us_to narrow(?:s|ed)? supports? favou?rs? confirms? "
        "in_other_words consistent i\\.e\\. namely labell?ed marked given_(?:in|by) "
        "stated_(?:in|by) described_(?:in|by) expressed_(?:in|by) represented_by"
    ),
    r"|^\W*(?:of|among|in|from|looking at) (?:the|these|those|our) (?:\w+ )?(?:choices|options|answers|list)\b[^.!?]*\b(?:is|are)"
    rf"|\b{_FIT}|\b(?:is|are|was) (?:\w+ )?\w+ed (?:by|in|under|as|at)(?= (?:the )?(?:option|choice|answer)\b))(?:[\s,:]+",
    _any("us it me down is in on to at for by with under as that what only just exactly precisely best the option choice answer"),
    r")*[\s,:]*$",
)
FAVOUR_AFTER: Final = _pattern(
    rf"\s+(?:\w+ )?{_FIT}\b|\s+",
    _any("best accurately correctly precisely exactly"),
    r"\s+\w+s\b|\s+(?:is|seems) (?:the )?(?:most|best|more) (?:consistent|compatible|likely|plausible|appropriate|accurate|reasonable)\b|"
    r"\s+(?:is|seems|appears|stands|looks|remains)\s+(?:\w+\s+){0,3}(?:correct|right|true|best|strongest)\b|",
    r"\s+(?:is|was)\s+(?:the (?:one|statement|option|choice) )?(?:that|what|where|which)\s+(?:i|we)\b|",
    r"\s+(?:holds|is (?:best |well )?supported by)\b",
)
WHAT_IT_SAYS: Final = _pattern(r"\b(?:this|that|it|which) is (?:\w+ )?what (?:(?:option|choice|answer|statement) )?$")
AGAINST: Final = _pattern(
    r"n't\b|\b",
    _any(
        "not no nor never neither none cannot wrong incorrect false fails? eliminat\\w+ excluded? rul(?:ed?|ing)_out reject\\w* unlike "
        "would could might may suppose assume consider check test examine see let's some many (?<!in\\s)other people hint user key "
        "book teacher friend he she they far close opposite near before doubt wonder unlikely unsure deny why nothing nobody "
        "little hardly initially originally "
        "previously "
        "earlier at_first used_to thought part at_least "
        "students naive\\w* tempting partly partially almost but although however while than hard difficult given_that"
    ),
    r"\b",
)

IN_CASE: Final = _pattern(r"\b(?:if|unless|whether)\b[^,]*$")
CASE: Final = _pattern(r"\b(?:if|unless|whether|provided)\b")
ONLY_THIS: Final = _pattern(r"\bonly\b[^.!?\n]{0,40}$")
VERB: Final = re.compile(r"[,)]*\s+[a-z]+s\b")

# ---- what makes a statement none: it is supposed, reported or denied

TURN: Final = _pattern(
    r"\b",
    _any("but however yet no_doubt without_(?:a_|any_)?doubt in_fact in_truth in_reality actually so therefore thus hence"),
    r"\b|[;:]",
)
SUPPOSED: Final = _pattern(
    r"\b",
    _any("if whether suppose supposing assume assuming unless imagine say claim pretend until thought used_to_think"),
    r"(?:\s+(?:that|for now))?(?:\s+(?:the|our|my))?\s*(?:\w+\s+)?$",
)
GUESSING: Final = _pattern(
    r"\bif (?:i|we) (?:had|have|must|were|need|am forced|was forced|were forced|really had)(?: to)? ?(?:guess|choose|pick|"
    r"answer|decide|select|say)?\b"
)
UNREAL: Final = _pattern(r"\b(?:if|had|were|without|unless|under the)\b")
UNREAL_AFTER: Final = _pattern(r"[^.!?\n]{0,60}?\b(?:if|had|were it|unless|provided|but|in (?:that|this) case)\b|\s+(?:for|with) an?\b")
CONDITION: Final = _pattern(r"\s*,?\s*(?:only )?(?:if|unless|provided)\b")
MODAL: Final = _pattern(r"\b(?:would|could|might|may)\b")
REPORTED: Final = _pattern(
    r"\b(?:(?:you|one|we|some|it|many|they|people|students?|readers?) (?:might|may|could|would|often|usually)|",
    r"(?:some|many|most|other(?! words)|several|careless) (?:people|\w+(?<!ou)s)|"
    r"according to (?:the|my|his|her|their) (?:book|textbook|key|teacher|friend|hint|author|user|solution)|",
    r"(?:friend|teacher|book|textbook|author|professor|colleague|user|hint|who|he|she|they) "
    r"(?:said|says?|claim\w*|thinks?|told|writes|wrote|suggests?|lists?)|",
    _any(
        "tempt\\w* at_first first_glance naive\\w* students? people others someone mistaken\\w* wrongly incorrectly erroneous\\w* "
        "common_(?:mistake|error) initially originally earlier previously i_(?:first|once) key_says hint user claimed "
        "thinks believes argues insists supposedly never trap distractor"
    ),
    r")\b",
)
DENIED: Final = _pattern(
    r"\b(?:\w+n't|",
    _any(
        "not never neither nor none cannot hardly no_longer rule_out ruling_out (?<!is\\s)(?<!'s\\s)why doubt unsure unlikely wonder "
        "unclear "
        "deny hard_to "
        "difficult_to no_reason"
    ),
    r")\b[^.,;:\n]{0,25}$",
)
NOT_WITHOUT_BUT: Final = _pattern(r"\bnot\b(?!.*\bbut\b)|n't\b")
OTHER: Final = _pattern(  # "the wrong answer is", "the first option is"
    r"\b",
    _any(
        "wrong incorrect false others? another first second third fourth last worst next each every no tempting bad opposite common "
        "which what whose"
    ),
    r"\s*$",
)

# ---- retractions, and where another question begins

_VERDICT: Final = _pattern(r"\b", _any("wrong incorrect false mistaken an?_(?:mistake|error) right correct"), r"\b")
_SUBJECT: Final = _pattern(  # of a verdict
    r"\b(?:that|this|it|my answer|the above|(?:option |choice |answer )?\(?\b(?P<letter>[A-Z])\)?)",
    r"(?P<be>'s| is| was| were| seems| looks| can't be| cannot be| isn't| is not| wasn't| couldn't be| doesn't (?:seem|look))",
    r"(?: (?:clearly|obviously|also|actually|just|plainly|simply))?[^.!?,;\n]{0,12}$",
)
_CLAUSE_START: Final = _pattern(r"(?:^|[.!?…:;,–—\n-])\s*(?:(?:but|however|yet|and|so)[\s,]+)?$")
_INTERJECTION = _any("wait oops no hmm+ hm actually hold_on sorry oh ah ugh uh")
_INTERJECTED: Final = _pattern(rf"\b{_INTERJECTION}\b[\s,:.!…–—(-]{{1,5}}(?:{_any('but well no however i_think')}[\s,]{{1,3}})?$")
_NEGATED: Final = _pattern(r"\b(?:not|isn't|wasn't|can't|cannot|couldn't|doesn't)\b")
_WITHDRAWN: Final = _pattern(
    r"\b(?:scratch that|strike that|i take (?:that|it) back|i (?:have )?made an? (?:\w+ )?(?:mistake|error|slip)|"
    r"i was (?:wrong|mistaken)|never ?mind|"
    r"(?:on (?:second thoughts?|(?:further )?reflection)|actually|wait|hmm+|hold on)\W+(?:[^.!?\n]{0,40}\b)?(?:cannot|can't) (?:be )?"
    r"(?:tell|determined?|decided?|known?|say)\b|"
    r"(?:disregard|ignore) (?:that|the above)|i (?:need|have) to start over|let me start over|start again|i retract|i withdraw)"
)
TURN_BACK: Final = _pattern(rf"\b(?:{_INTERJECTION}|but|however|instead|correction|recheck\w*|again)\b")


@dataclass(frozen=True, slots=True)
class Retraction:
    """Something taken back: an option by its letter, or what was said last ("")."""

    start: int
    end: int
    letter: str


def retractions(text: str) -> Iterator[Retraction]:
    """ "Wait, that is wrong", "No, (A) cannot be right", "scratch that": where the text takes something back."""
    for found in _WITHDRAWN.finditer(text):
        yield Retraction(found.start(), found.end(), "")
    for found in _NOT_IT.finditer(text):
        if found["letter"].isupper():
            yield Retraction(found.start(), found.end(), found["letter"])
    for found in _VERDICT.finditer(text):
        before = text[max(0, found.start() - 80) : found.start()]
        subject = _SUBJECT.search(before)
        if subject is None or (_NEGATED.search(subject.group()) is not None) != (found.group().lower() in ("right", "correct")):
            continue
        lead = before[: subject.start()]
        if _INTERJECTED.search(lead) or (not subject["letter"] and _CLAUSE_START.search(lead)):
            yield Retraction(found.start(), found.end(), (subject["letter"] or "").upper())


_NOT_IT: Final = _pattern(
    r"\b(?:it|that|the answer)\s*(?:isn't|is not|'s not|can't be|cannot be|wasn't|couldn't be)\s+(?:(?:option|"
    r"choice)\s+)?\(?(?P<letter>[A-Z])\b(?!')"
)
_DOUBT: Final = _pattern(
    r"(?:^|[.!?…\n–—-]\s*)(?:but |hmm+,? |no,? )?(?:",
    _any("wait hold_on hang_on hmm+ on_second_thoughts? however,?_wait actually,?_wait"),
    r"|let (?:me|us) (?:re|double|just)|let's (?:re|double))",
)
_ASSURED: Final = _pattern(
    r"\b",
    _any("yes yeah yep indeed right correct fine ok okay consistent confirm\\w* holds? same stands? still agree\\w* matches checks"),
    r"\b",
)


def in_doubt(rest: str) -> bool:
    """Whether what comes behind the last statement opens it again and is not heard to an end: "But wait, if the pressure were" """
    opened = list(_DOUBT.finditer(rest))
    return bool(opened) and _ASSURED.search(rest, opened[-1].end()) is None


NEXT_QUESTION: Final = re.compile(r"^(?:question|q|problem|exercise|example)\s*\d*\s*[:.)]", re.IGNORECASE | re.MULTILINE)

DENIED_AFTER: Final = _pattern(
    r"(?:\s+\([^()\n]{1,40}\))?[,)]?\s+(?:is|are|was|seems|looks)\s+(?:\w+ly )?(?:wrong|incorrect|false|not|out)\b"
)

# ---- lines

LINE_PREFIX: Final = _pattern(r"(?:\d+[.)] ?)?(?:(?:the )?(?:(?:final|correct) )?(?:option|choice|answer|letter)\s?[:=]?\s?)?\(?$")
LINE_REST: Final = re.compile(r"[ .)!\]✓✅✔;,]*(?:\n|$)")
LABEL: Final = re.compile(
    r"(?:(?:[Oo]ption|[Cc]hoice|[Aa]nswer) )?(?:\((?P<round>[A-Za-z])\)[,:]?|\[(?P<square>[A-Za-z])\][,:]?|"
    r"(?P<bare>[A-Za-z])(?P<mark>[.):]| [–—-](?= \w\w| \d)))"
    r" \S|(?P<short>[A-HJ](?= \()|[B-HJ](?=, ))[ ,(]+(?!.*\b(?:is|are|was|were|has|have|being|not?)\b)\w{2}"
)
REFUTED: Final = _pattern(
    r"^\W*(?:is|was|are|has|does|doesn't|cannot|can't|fails|seems|lacks|contradicts|ignores)\b|^.{0,12}?\b(?:incorrect|wrong|false|"
    r"fails?|no)\b|\bi (?:don't|do not|cannot|can't|am not|am unable)\b|"
    r"(?:^|[,;–—-])\W*(?:(?:this|that|it|which) )?(?:is |are )?(?:\w+ly )?(?:incorrect|wrong|false|not correct)\W*$"
)
_VERDICT_AT = (r"^\W*(?:(?:this|that|it)(?: \w+)? (?:is|was|looks) )?(?:", r")\b|\b(?:", r")\W*$")
_YES, _NO = _any("correct right yes true"), _any("incorrect wrong false no not_correct not_right not_true")
ONLY_YES: Final = _pattern(r"\W*(?:correct|right|true)\W*")
AFFIRMED: Final = _pattern(r"[✓✔✅]|", _YES.join(_VERDICT_AT[:2]), _YES, _VERDICT_AT[2])
CROSSED: Final = _pattern(r"[✗✘❌✖]|", _NO.join(_VERDICT_AT[:2]), _NO, _VERDICT_AT[2])
MARKED: Final = re.compile(r"\b(?P<letter>[A-J])\b[).:]? ?(?:(?P<yes>[✓✔✅])|[✗✘❌✖])")
BOX_LEAD: Final = _pattern(r"\s*(?:(?:the|final|correct|answer|option|choice|letter|is)\b[\s:]*)*")
BOX_JOIN: Final = _pattern(r"[\s,;]*(?:and|or|&)?\s*")
SENTENCE: Final = re.compile(r"[.!?][ )]+|\n+")
ABBREVIATED: Final = re.compile(r"(?:i\.e|e\.g|(?<![A-Za-z])[Aa]ns|\b(?:M[rs]|Mrs|Dr|St|vs|cf|Fig|Eq|Prof))$")
ITS_LAST: Final = _pattern(r"\bthat(?:'s| is) (?:what|the (?:answer|one|option)) i(?:'d| would|'ll)? (?:pick|choose|give|go with|select)\b")
