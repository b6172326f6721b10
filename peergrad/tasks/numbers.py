"""Answers as people write them: LaTeX in fewer spellings, and numbers, exact and only where there is no doubt."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

_LONGEST = 200  # no number is that long, and turning digits into one is not linear
_MONEY = "$€£¥₹¢"

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


@dataclass(frozen=True, slots=True)
class Amount:
    """A number that was read: its value as written, whether it is so many per cent, how many decimals it has, and of what
    unit it is, if that is one of a kind of which there are others (minutes, hours).
    """

    value: Fraction
    percent: bool = False
    decimals: int = 0
    unit: str = ""

    def same(self, other: Amount) -> bool:
        """Whether both are one answer: 50 % may be written 50 or 0.5, and a third may be written 0.333333."""
        if self.unit and other.unit and self.unit != other.unit:
            return False
        # 0.5 % is not 0.5, but 50 may be meant as 50 %.
        plain = self.value == other.value and (self.percent == other.percent or abs(self.value) >= 1)
        return plain or self._exact == other._exact or self._close(other) or other._close(self)

    @property
    def _exact(self) -> Fraction:
        return self.value / 100 if self.percent else self.value

    def _close(self, decimal: Amount) -> bool:
        """Whether a decimal is this fraction, which no decimal equals, rounded or cut off after six places or more."""
        if decimal.decimals < 6 or 10**_LONGEST % self.value.denominator == 0:
            return False
        exact, written = self.value * 10**decimal.decimals, decimal.value * 10**decimal.decimals
        return written in (round(exact), int(exact))


def as_number(text: str) -> Fraction | None:
    """The number that a text is, exactly, or ``None``.

    Example: ``as_number(r"\\$1,234.50 \\text{ per day}") == Fraction(2469, 2)``
    """
    amount = as_amount(text)
    return None if amount is None else amount.value


def as_amount(text: str, *, named: bool = False) -> Amount | None:
    """The same with how it was written. ``named``: it may begin with a name, as in ``x = 5``."""
    text = text.strip()
    if len(text) > _LONGEST:
        return None
    text = plain(text)
    if named:
        text = unwrapped(_NAMED.sub("", text, count=1))
    before = _BEFORE.match(text := _bare(text))
    assert before
    read = _read(text[before.end() :])
    if read is None or (before[1] and before[2]):
        return None
    value, decimals, rest = read
    percent = _unit(rest)
    if percent is None:
        return None
    unit = _kind(rest) or ("dollar" if "$" in before[0] else "")
    return Amount(-value if "-" in (before[1], before[2]) else value, percent, decimals, unit)


def _bare(text: str) -> str:
    """Without brackets around all of it."""
    for opening, closing in ("{}", "()"):
        inside = text[1:-1]
        if text[:1] == opening and text[-1:] == closing and opening not in inside and closing not in inside:
            text = inside.strip()
    return text


_B = r"[ \u2009]*+"
_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]{1,3}(?:\u2009[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]*)?|\.[0-9]+"
_NAME = rf"[A-Za-z](?:_(?:[A-Za-z0-9]|\{{[^{{}}]{{1,10}}\}}))?|{QUOTED}[A-Za-z ]+{QUOTED}|[A-Za-z]{{2,20}}"
_NAMED = re.compile(rf"(?:{_NAME})\s*=\s*")
_BEFORE = re.compile(rf"([+-]?){_B}(?:(?:US)?[{_MONEY}]|USD\b|EUR\b|GBP\b)?{_B}([+-]?){_B}")
_MIXED = re.compile(rf"([0-9]+)[ \u2009]++([0-9]+){_B}/{_B}([0-9]+)")
_FRAC = re.compile(rf"([0-9]*){_B}\\frac{_B}(\{{[^{{}}]*\}}|[0-9]){_B}(\{{[^{{}}]*\}}|[0-9])")
_RATIO = re.compile(rf"({_DIGITS}){_B}/{_B}({_DIGITS})")
_TEN = rf"{_B}(?:\\times|\\cdot|[×·*x]){_B}10{_B}\^{_B}(?:\{{{_B}([+-]?[0-9]{{1,2}}){_B}\}}|(-?[0-9])(?![0-9]))"
_POWER = re.compile(rf"({_DIGITS})(?:{_TEN}|[eE]([+-]?[0-9]{{1,2}})(?![0-9]))")
_DECIMAL = re.compile(rf"({_DIGITS})")
_SIGNED = re.compile(rf"{_B}(-?){_B}({_DIGITS}){_B}")


def _read(text: str) -> tuple[Fraction, int, str] | None:
    """The number a text begins with, how many decimals it has, and what follows; the first form that fits decides."""
    if match := _MIXED.match(text) or _FRAC.match(text):
        top, low = _signed(match[2]), _signed(match[3])
        if top is None or not low or (match[1] and not 0 < top < low):
            return None
        return int(match[1] or "0") + top / low, 0, text[match.end() :]
    if match := _RATIO.match(text):
        low = _exact(match[2])
        return (_exact(match[1]) / low, 0, text[match.end() :]) if low else None
    if match := _POWER.match(text):
        power = int(match[2] or match[3] or match[4])
        return _exact(match[1]) * Fraction(10) ** power, 0, text[match.end() :]
    if match := _DECIMAL.match(text):
        return _exact(match[1]), len(match[1].partition(".")[2]), text[match.end() :]
    return None


def _exact(digits: str) -> Fraction:
    return Fraction(digits.replace(",", "").replace(THIN, "").rstrip("."))


def _signed(argument: str) -> Fraction | None:
    match = _SIGNED.fullmatch(argument.strip("{}"))
    return None if not match else -_exact(match[2]) if match[1] else _exact(match[2])


# Units short enough to be taken for unknowns, and words that change the number they follow.
_SHORT = "cm mm km kg mg ml mL ft in lb lbs oz mi yd yds hr hrs min sec mph kph cents USD EUR GBP am pm of"
_OTHER = """
or and to than more less least most between not hundred hundreds thousand thousands million millions billion billions
trillion trillions dozen dozens half halves third thirds quarter quarters fourth fourths fifth fifths sixth sixths
seventh sevenths eighth eighths ninth ninths tenth tenths hundredth hundredths thousandth thousandths score times
squared cubed factorial plus minus mod modulo sqrt root sin cos tan cot csc log exp lim max arcsin arccos arctan
infinity alpha beta gamma delta epsilon theta lambda sigma omega phi one two three four five six seven eight nine ten
"""
_UNITS, _NO_UNITS = frozenset(_SHORT.split()), frozenset(_OTHER.split())
_PERCENT = ("%", "percent", "percentage")
_UNIT = re.compile(
    rf"[ \u2009]+|[A-Za-z]+(?:[-'’][A-Za-z]+)*|[{_MONEY}%°/]|\^{_B}\{{?{_B}\\circ{_B}\}}?|\^\{{?[23]\}}?|[²³]"
)


def _unit(text: str) -> bool | None:
    """Whether what follows a number says per cent; ``None`` if it is more than a unit."""
    percent, before = False, ""
    for index, piece in enumerate(text.rstrip().removesuffix(".").split(QUOTED)):
        at = 0
        while at < len(piece):
            match = _UNIT.match(piece, at)
            if not match or not _fits(match[0], before, index % 2 == 1):
                return None
            percent = percent or match[0].lower() in _PERCENT
            at, before = match.end(), match[0]
    return percent


# Units that are easily confused, each in its spellings: an answer in another one is another answer.
_CONFUSED = """
mm millimeter millimetre, cm centimeter centimetre, meter metre, km kilometer kilometre, inch in inches, foot ft feet,
yard yd, mile mi, mg milligram, gram, kg kilogram kilo, ounce oz, pound lb, second sec, minute min, hour hr, day, week,
month, year, dollar usd $, cent ¢, am, pm
"""
_KINDS = {name: names.split()[0] for names in _CONFUSED.split(",") for name in names.split()}


def _kind(text: str) -> str:
    """The unit after a number, if it is one of these; of several (miles per hour) the first."""
    for word in re.findall(r"[A-Za-z]+|[$¢]", text):
        low = word.lower()
        if kind := _KINDS.get(low) or _KINDS.get(low.removesuffix("s")):
            return kind
    return ""


def _fits(word: str, before: str, quoted: bool) -> bool:
    if word[0] in "²³" or (word[0] == "^" and "circ" not in word):
        return before[:1].isalpha()
    if not word[0].isalpha() or (before == "°" and word in "CF"):
        return True
    if word.lower() in _NO_UNITS:
        return False
    return quoted or word in _UNITS or (len(word) >= 3 and before != "")
