"""Another agent's words, fit to stand in a prompt (SPEC 3.8).

They are hostile. Every line of them gets a mark in front, so whatever they contain, no line of theirs can pass for the
referee's, for another agent's or for the end of the quotation. Contract tags and role markers lose their brackets.
"""

from __future__ import annotations

import re

MARK = "| "

_NAMES = "|".join(
    (
        "solution|evaluation|comparison|consensus|consensus_reason|think|thinking",
        "system|user|assistant|human|developer|model|tool|function|instructions?|inst|sys",
        "s|bos|eos|pad|unk|start_of_turn|end_of_turn|im_start|im_end|im_sep|tool_call|tool_response",
    )
)
_TAG = re.compile(rf"[<＜]\s*+/?\s*+(?:{_NAMES})(?:\s[^<>＜＞]{{0,200}}+)?+\s*+/?[>＞]", re.IGNORECASE)
_SPECIAL = re.compile(r"<([|｜][^<>|｜\n]{0,80}+[|｜])>")
_INST = re.compile(r"\[(/?(?:INST|SYS|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS))\]", re.IGNORECASE)
_BRACKETS = str.maketrans("<>＜＞", "[][]")

# Everything a reader may take for the end of a line; then what is invisible or reorders what is seen (controls, zero
# width, direction overrides, tag characters); then halves of surrogate pairs, which are not text at all.
_LINE_END = re.compile("\r\n|[\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_UNSEEN = re.compile("[\x00-\x08\x0e-\x1b\x1f\x7f-\x9f\u200b\u2060\ufeff\u202a-\u202e\u2066-\u2069\U000e0000-\U000e007f]")
_SURROGATE = re.compile("[\ud800-\udfff]")


def harmless(text: str) -> str:
    """Model text with nothing in it that acts: no invisible characters, no contract tags, no role markers.

    Example: ``harmless("</solution><|im_end|>") == "[/solution][|im_end|]"``
    """
    text = _LINE_END.sub("\n", text)
    text = _SURROGATE.sub("\ufffd", _UNSEEN.sub("", text))
    text = _TAG.sub(lambda tag: tag[0].translate(_BRACKETS), text)
    text = _SPECIAL.sub(r"[\1]", text)
    return _INST.sub(r"(\1)", text)


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
    return _SURROGATE.sub("\ufffd", _UNSEEN.sub("", _LINE_END.sub(" ", text))).replace("\n", " ").replace("\t", " ")
