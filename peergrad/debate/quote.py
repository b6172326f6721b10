"""Another agent's words, fit to stand in a prompt (SPEC 3.8).

They are hostile. Every line of them gets a mark in front, so whatever they contain, no line of theirs can pass for the
referee's, for another agent's or for the end of the quotation. Contract tags and role markers lose their brackets.
"""

from __future__ import annotations

import re

MARK = "| "

# Names that make a tag even where it is not closed, and common words that do only in brackets of their own.
_OPENING = (
    "solution|evaluation|comparison|consensus|consensus_reason|think|thinking|"
    "start_of_turn|end_of_turn|im_start|im_end|im_sep|tool_call|tool_response|bos_token|eos_token"
)
_CLOSED = "system|user|assistant|human|developer|model|tool|function|instructions?|inst|sys|s|bos|eos|pad|unk|mask"
_END = r"\s*+[/／]?[>＞]"
# The look-ahead for a letter is for speed: most brackets are none of these.
_TAG = re.compile(rf"[<＜]\s*+[/／]?\s*+(?=[a-z])(?:(?:{_OPENING})(?!\w)(?:{_END})?|(?:{_CLOSED}){_END})", re.IGNORECASE)
_SPECIAL = re.compile(r"[<＜]([|｜][^<>＜＞|｜\n]*+[|｜])[>＞]")
_INST = re.compile(
    r"\[(/?(?:(?i:INST|SYS|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS)|THINK|TOOL_CONTENT|CALL_ID|ARGS))\]"
)
_BRACKETS = str.maketrans("<>＜＞", "[][]")

# Everything a reader may take for the end of a line; then what is invisible or reorders what is seen (controls, zero
# width, direction overrides, tag characters); then halves of surrogate pairs, which are not text at all.
_LINE_END = re.compile("\r\n|[\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_UNSEEN = re.compile("[\x00-\x08\x0e-\x1b\x1f\x7f-\x9f\u200b\u2060\ufeff\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_MARKS = re.compile("[\u061c\u180e\u200e\u200f]")  # they turn what is beside them: fine in a text, not in our lines
# Joiners, fillers, direction marks and variation selectors belong to some scripts and to emoji. Next to ASCII they only
# serve to hide a tag.
_JOINER = (
    "\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200c-\u200f\u2061-\u2064\u206a-\u206f\u3164\ufe00-\ufe0f\uffa0"
    "\U000e0080-\U000e0fff"
)
_JOINERS = re.compile(f"(?<=[ -~])[{_JOINER}]++|(?<![{_JOINER}])[{_JOINER}]++(?=[ -~])")


def harmless(text: str) -> str:
    """Model text with nothing in it that acts: no invisible characters, no contract tags, no role markers.

    Example: ``harmless("</solution><|im_end|>") == "[/solution][|im_end|]"``
    """
    text = _UNSEEN.sub("", _LINE_END.sub("\n", text))
    if not text.isascii():
        text = _SURROGATE.sub("\ufffd", _JOINERS.sub("", text))
    text = _TAG.sub(lambda tag: tag[0].translate(_BRACKETS), text)
    text = _SPECIAL.sub(lambda token: f"[{token[1]}]", text)
    return _INST.sub(lambda mark: f"({mark[1]})", text)


def only_text(text: str) -> str:
    """Text with U+FFFD for halves of surrogate pairs, which are not text; it has as many bytes, so offsets hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return _SURROGATE.sub("\ufffd", text)
    return text


def clip(text: str, max_chars: int) -> str:
    """At most ``max_chars`` characters, with a sign that something is missing."""
    return text if len(text) <= max_chars else text[: max_chars - 1] + "…"


def quote(fields: dict[str, str]) -> str:
    """Named fields of one agent as a quoted block, each line marked.

    Example: ``quote({"solution": "4"}) == "| solution: 4"``
    """
    lines = "\n".join(f"{name}: {harmless(text)}" for name, text in fields.items())
    return MARK + lines.replace("\n", "\n" + MARK)


def visible(text: str) -> str:
    """Text as one line that a terminal can be given: nothing in it moves the cursor, hides or reorders."""
    text = _MARKS.sub("", _UNSEEN.sub("", _LINE_END.sub(" ", text)))
    return _SURROGATE.sub("\ufffd", text).replace("\n", " ").replace("\t", " ")
