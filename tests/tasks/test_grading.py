"""Whether an answer is the right one: numbers, words, mathematics, and names that votes can be counted by."""

from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given as given_anything
from hypothesis.strategies import lists, sampled_from

from peergrad import Question
from peergrad.tasks import grading
from peergrad.tasks.arithmetic import arithmetic
from peergrad.tasks.base import Grade, Questions, grade_all
from peergrad.tasks.numbers import as_number
from peergrad.tasks.open import gradable, regrade
from peergrad.tasks.pool import Pool

GSM8K = (Path(__file__).parents[1] / "fixtures/gsm8k/answers.txt").read_text().split()

# A whole number n, as people and models write it.
SPELLINGS = {
    "digits": str,
    "commas": lambda n: f"{n:,}",
    "commas in LaTeX": lambda n: f"{n:,}".replace(",", "{,}"),
    "commas without space": lambda n: f"{n:,}".replace(",", ",\\!"),
    "thin spaces": lambda n: f"{n:,}".replace(",", r"\,"),
    "dollars": lambda n: f"-${-n}" if n < 0 else f"${n}",
    "escaped dollars": lambda n: rf"\${n}",
    "money": lambda n: rf"\${n:,}.00",
    "mathematics": lambda n: f"${n}$",
    "units": lambda n: f"{n} dollars",
    "more units": lambda n: f"{n} miles per hour.",
    "units in LaTeX": lambda n: rf"{n}\text{{ apples}}",
    "square units": lambda n: rf"{n}~\mathrm{{cm}}^2",
    "per cent": lambda n: rf"{n}\%",
    "degrees": lambda n: rf"{n}^\circ",
    "decimals": lambda n: f"{n}.00",
    "full stop": lambda n: f"{n}.",
    "leading zeros": lambda n: f"{n:04}",
    "fraction": lambda n: rf"\frac{{{2 * n}}}{{2}}",
    "ratio": lambda n: f"{3 * n}/3",
    "name": lambda n: f"x = {n}",
    "quoted name": lambda n: rf"\text{{Total}} = {n}",
    "brackets": lambda n: rf"\left({n}\right)",
    "bold": lambda n: rf"\mathbf{{{n}}}",
    "scientific": lambda n: rf"{Fraction(n, 10).numerator / Fraction(n, 10).denominator} \times 10^1",
}


def given(gold, answer):
    return grading.grade(Question("q", "?", gold, "boxed"), f"I think it is \\boxed{{{answer}}}, yes.")


@pytest.fixture
def no_processes(monkeypatch):
    """Whatever is graded must be graded here: there is nobody to ask."""
    monkeypatch.setattr(Pool, "call", lambda *_: pytest.fail("a process was asked"))


@pytest.mark.usefixtures("no_processes")
@pytest.mark.parametrize("how", SPELLINGS)
def test_every_answer_of_gsm8k_in_every_spelling(how):
    assert len(GSM8K) == 1319
    for gold in GSM8K:
        assert given(gold, SPELLINGS[how](int(gold))) == Grade(True, gold), SPELLINGS[how](int(gold))


@pytest.mark.usefixtures("no_processes")
@pytest.mark.parametrize("how", SPELLINGS)
def test_every_answer_an_aime_can_have_in_every_spelling(how):
    for n in range(1000):
        for gold in (str(n), f"{n:03}"):  # they are written both ways
            assert given(gold, SPELLINGS[how](n)) == Grade(True, str(n)), SPELLINGS[how](n)


@pytest.mark.usefixtures("no_processes")
def test_near_misses_are_wrong():
    for gold in GSM8K:
        n, digits = int(gold), gold.lstrip("-")
        turned = {int(digits[::-1]), int(digits + digits), int(digits[:-1] or "0"), int(digits[1:] or "0")}
        for other in ({n + 1, n - 1, n * 10, n * 100, n + 10, n + 1000, -n} | turned) - {n}:
            for how in ("digits", "commas", "money", "units", "fraction", "name"):
                assert given(gold, SPELLINGS[how](other)) == Grade(False, str(other))
        for spelled in (f"{n}.5", f"{n}.01", f"{2 * n + 1}/2", f"{n} 1/2", rf"{n}\frac{{1}}{{3}}", f"{n}e3"):
            assert not given(gold, spelled).correct, spelled


NO_NUMBERS = """
3 or 4|1/2/3|12 and 13|5 × 6|x|2^5|1-2|5–6|1 234|1 000 000|5, 000|5-|--5|-(-5)|1, 2|(1,2)|1,23|1.2.3|5!|5x|5 x|5i|5 million
5 m|5m|10^2|5 squared|3 quarters|5 pi|1:2|12:30|0/0|1/0|5²|5^2|.|-|5e|1e999|5 7/2|0x10|1_000|[5]|(5|5)|± 5|5 ± 1|5 or more
at least 5|5 < x|3 4|x=y=5|2+3=5|5 sqrt|٤٢|５|Ⅴ|5 to|5 dozen|5 and a half|1.5 1/2|5 hours 3 minutes|\\pm 5|\\frac{1}{0}|5^{2}
5\\pi|\\{5\\}|7\\text{ or }8|5 \\text{ million}|\\frac{x}{2}|\\sqrt{4}|5\\,6|1,\\,234
"""


@pytest.mark.parametrize("text", NO_NUMBERS.strip().replace("\n", "|").split("|"))
def test_what_may_be_no_number_is_left_to_others(text):
    assert as_number(text) is None


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("1 1/2", Fraction(3, 2)),
        (r"-2\frac{1}{4}", Fraction(-9, 4)),
        (r"\frac12", Fraction(1, 2)),
        ("-$5", -5),
        ("$-5", -5),
        ("- 5", -5),
        ("\u22125", -5),
        ("3/4 of the cake", Fraction(3, 4)),
        ("18 °C", 18),
        ("1.5e-3", Fraction(3, 2000)),
        (r"2 \times 10^{-2}", Fraction(1, 50)),
        ("**7**", 7),
        (r"\text{7 cats}", 7),
    ],
)
def test_numbers_with_something_around_them(text, number):
    assert as_number(text) == number


@pytest.mark.parametrize(
    ("gold", "right", "wrong"),
    [
        ("50", ["50%", r"50\%", "50 percent", "50"], ["0.50", "5%", "500%"]),
        ("0.5", ["50%", "1/2", ".5", r"\frac{1}{2}"], ["5%", "50"]),
        (r"50\%", ["50", "0.5", r"\frac12", "50 \\text{ percent}"], ["5", "5000"]),
        (r"\frac{1}{3}", ["0.333333", "0.3333333333", "2/6"], ["0.333", "0.33", "0.333334"]),
        ("0", ["0.00", "0/5", "-0"], ["0.00000001", "1e-9"]),
        ("3/2", ["1 1/2", "1.5", r"1\frac{1}{2}"], ["11/2", "1 2"]),
        (
            "Evelyn",
            ["evelyn", r"\text{Evelyn}", r"\textbf{ EVELYN }.", "  Evelyn "],
            ["Evelyne", "Eve", "5", r"9^{9^{9^9}}"],
        ),
        (r"\text{(B)}", ["B", "(B)", "b", r"\textbf{(B)}", r"\mathrm{B}"], ["A", "(BB)", "2"]),
        ("No", ["no", "No.", r"\text{NO}"], ["yes", "not"]),
        ("32", ["2^5", r"\sqrt{1024}", "2^{5}", r"4 \times 8", "x = 2^5"], ["2^6", "3 or 32", "32x", "x > 32", "1 31"]),
        ("x+1", ["1+x", "x + 1", r"\frac{2x+2}{2}", "y = x+1"], ["x-1", "x", "5", "1"]),
        (r"\frac{\sqrt{3}}{3}", [r"\frac{1}{\sqrt{3}}", r"\dfrac{\sqrt3}{3}", "3^{-1/2}"], [r"\sqrt{3}", "1/3"]),
        ("3, 4", ["4, 3", "3 or 4", r"\{3,4\}"], ["3", "4", "3, 5", "34", "3 4"]),
        ("(1, 2)", ["(1,2)", r"\left(1, 2\right)"], ["(2, 1)", "(1, 3)", "12"]),
        (
            r"\begin{pmatrix} 1 \\ 2 \end{pmatrix}",
            [r"\begin{bmatrix}1\\2\end{bmatrix}"],
            [r"\begin{pmatrix}2\\1\end{pmatrix}"],
        ),
        ("x=5", ["5", "x = 5", "x=5.0"], ["y=5", "6"]),
        ("[1, 2)", [r"\left[1, 2\right)"], ["(1, 2)", "[1, 2]"]),
        (r"11,\! 111", ["11111", "11,111"], ["11", "111"]),
        (r"2\pi", [r"\pi \cdot 2", r"\pi + \pi"], [r"\pi", "2", "6.28"]),
    ],
)
def test_right_and_wrong(gold, right, wrong):
    name = given(gold, gold).answer
    for answer in right:
        assert given(gold, answer) == Grade(True, name), answer
    for answer in wrong:
        grade = given(gold, answer)
        assert not grade.correct, answer
        assert not grade.timed_out
        assert grade.answer not in (None, name)


@pytest.mark.parametrize(
    ("gold", "given", "right"),
    [
        ("5 pm", "5 am", False),
        ("5 minutes", "5 hours", False),
        ("5 minutes", "5 min", True),
        ("10 cm", "10 km", False),
        ("10 cm", "10", True),
        ("12 inches", "12 in", True),
        ("$5", "5 cents", False),
        ("$5", "5 dollars", True),
        ("0.5", "0.5%", False),
        ("0.5", "50%", True),
        ("50", "50%", True),
        ("2024-01-02", "2021", False),
        ("2024-01-02", "2024-01-02", True),
        ("3:30", "3.5", False),
        ("10", "10_2", False),
    ],
)
def test_units_dates_and_bases(gold, given, right):
    assert grading.grade(Question("q", "?", gold, "boxed"), rf"\boxed{{{given}}}").correct is right


def test_wrong_answers_that_are_one_have_one_name():
    for same in (
        ["x+2", "2+x", r"\frac{2x+4}{2}"],
        ["1/2", "0.5", r"\frac{1}{2}", "50/100"],
        [r"\sqrt{400}", "20", "2 \\cdot 10"],
    ):
        assert len({given("7", answer).answer for answer in same}) == 1
    assert given("7", r"x \oplus ( y").answer == r"x \oplus ( y"
    long = [given("7", "ab" * 600 + end).answer for end in "xy"]
    assert long[0] != long[1]
    assert max(map(len, long)) < 100


def test_what_is_no_answer():
    asked = Question("q", "?", "5", "boxed")
    for solution in ("5", r"\boxed{5", r"\boxed{}", r"\boxed{ }", ""):
        assert grading.grade(asked, solution) == Grade(False, None)
    assert grading.grade(asked, r"\boxed{4}, no: \boxed{\boxed{5}}").correct
    assert grading.grade(Question("q", "?"), r"\boxed{5}") == Grade(False, None)


def test_many_at_once_keep_their_order():
    task = Questions("t", (Question("a", "?", "5", "boxed"), Question("b", "?", "x+1", "boxed")), regrade)
    pairs = [(task[i % 2], rf"\boxed{{{n}+x}}") for i, n in enumerate([1, 2, 1, 1, 3, 1] * 20)]
    grades = grade_all(task.grade, pairs)
    assert [grade.correct for grade in grades] == [n == 1 and i % 2 == 1 for i, n in enumerate([1, 2, 1, 1, 3, 1] * 20)]
    assert grade_all(task.grade, []) == []


def test_saved_questions_name_their_grader():
    solution = "so 4 and 5"
    assert regrade(Question("q", "?", "5", "boxed", "arithmetic"), solution).correct
    assert not regrade(Question("q", "?", "5", "boxed", "gsm8k"), solution).format
    assert regrade(Question("q", "?", "5", "boxed", "gsm8k"), r"\boxed{10/2}").correct
    known = [gradable(Question("q", "?", "5", dataset=name)) for name in ("", "arithmetic", "mine", "my_task:Puzzles")]
    assert known == [True, True, True, False]
    assert not gradable(Question("q", "?", payload=[1]))
    assert arithmetic(count=0).grade(Question("q", "?", "5", "boxed"), r"\boxed{5.0}").correct


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ("9 + 7 = 16", "16"),
        ("16", "16"),
        ("10 - 13 = -3", "-3"),
        ("16 is 9 + 7", "16"),
        ("9 + 7", None),
        ("9+7", None),
        ("9 − 7", None),
        ("1.5", None),
    ],
)
def test_who_repeats_a_sum_has_not_answered_it(said, answer):  # SPEC 8.3
    question = Question("q", "What is 9 + 7?", "16", "number", "sums")
    assert arithmetic(count=0, name="sums").grade(question, said) == Grade(answer == "16", answer)
    assert question.style.answer(said) == answer


def test_without_math_verify_the_rest_still_works(monkeypatch):
    monkeypatch.setattr(grading, "installed", lambda: False)
    grading._compared.cache_clear()
    assert given("18", r"\$18.00").correct
    assert given("x+1", "x + 1") == Grade(False, "x + 1")
    assert given("x+1", r"\left(x+1\right)") == Grade(False, "(x+1)")
    assert given("x+1", "x+1").correct
    grading._compared.cache_clear()


LATEX = r"\frac \text{ \, \! \times 10 cm \left( \right) \$ {,} \circ dollars or"
PIECES = [*"0123456789.,/{}()$%-+e^x*= !°²\0\u2009\n", *LATEX.split(" ")]


@given_anything(lists(sampled_from(PIECES), max_size=12).map("".join))
def test_any_text_can_be_read(text):
    number = as_number(text)
    assert number is None or as_number(str(number)) == number
    assert not (number is not None and grading.needs_math(text))
