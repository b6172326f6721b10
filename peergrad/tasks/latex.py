"""LaTeX as people write answers in it, without what only changes how it looks."""

from __future__ import annotations

import re

# Marks that surround what was in \text{…}, where a letter is a letter and not an unknown.
QUOTED = "\0"
THIN = "\u2009"

_TOKEN = re.compile(r"\\(?:[A-Za-z]+|.)|\{,\}|[\u2212\u00a0\u202f~\t\n\r]", re.DOTALL)
_FONTS = """
textbf textit textrm textnormal texttt mathrm mathbf mathit mathsf mathtt boldsymbol bm mbox hbox operatorname
"""
_PLAIN = {
    **dict.fromkeys((r"\displaystyle", r"\(", r"\)", r"\[", r"\]"), ""),
    **dict.fromkeys((r"\;", r"\:", r"\>", "\\ ", "\\\n", r"\quad", r"\qquad", "~", "\u00a0", "\t", "\n", "\r"), " "),
    **dict.fromkeys((r"\,", r"\thinspace", "\u202f"), THIN),
    **dict.fromkeys((r"\dfrac", r"\tfrac", r"\cfrac"), r"\frac"),
    **dict.fromkeys([f"\\{font}" for font in _FONTS.split()], r"\text"),
    r"\$": "$",
    r"\textdollar": "$",
    r"\pounds": "£",
    r"\euro": "€",
    r"\%": "%",
    r"\degree": "°",
    "{,}": ",",
    "\u2212": "-",
}
_SIZED = re.compile(r"\\!\s*+|\\(?:left|right|big|Big|bigg|Bigg)[lr]?\s*+(?=[()\[\]|]|\\[{}|])")
_TEXT = re.compile(r"\\text\s*\{([^{}]*)\}")


def plain(text: str) -> str:
    """The same answer in fewer spellings: spacing, sizes and fonts gone; what was ``\\text{…}`` is between marks.

    Example: ``plain(r"18\\,\\textbf{cm}") == "18\\u2009\\0cm\\0"``
    """
    text = _TOKEN.sub(lambda match: _PLAIN.get(match[0], match[0]), _SIZED.sub("", text.replace(QUOTED, " ")))
    for _ in range(2):  # \textbf{\text{…}} is as deep as it gets
        text = _TEXT.sub(lambda match: QUOTED + match[1] + QUOTED, text)
    text = unwrapped(text)
    return text[1:-1].strip() if text.count(QUOTED) == 2 and text[0] == text[-1] == QUOTED else text


def unwrapped(text: str) -> str:
    """Without the marks of mathematics or of bold type around all of it."""
    text = text.strip()
    for mark in ("$$", "$", "**"):
        if len(text) > 2 * len(mark) and text.startswith(mark) and text.endswith(mark):
            text = text[len(mark) : -len(mark)].strip()
    return text


def flat(text: str) -> str:
    """The plain form as text to compare and to show: no marks, single blanks, no full stop at the end.

    Example: ``flat(r"\\text{Mrs.  Lin}.") == "Mrs. Lin"``
    """
    return " ".join(plain(text).replace(QUOTED, " ").split()).removesuffix(".").rstrip()
