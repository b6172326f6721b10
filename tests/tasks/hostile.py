"""Two hundred boxed answers that are meant to hang, flood, crash or trick whoever compares them with the right one.

``python -m tests.tasks.hostile [DEADLINE_S]`` grades them all and prints what became of them.
"""

import os
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from peergrad.debate.question import Question
from peergrad.tasks import grading
from peergrad.tasks.pool import Pool

MATHEMATICS = "peergrad.tasks.mathematics:compare"


def nested(head, tail, depth, core="x"):
    return head * depth + core + tail * depth


TOWERS = [
    *("9" + "^{9" * depth + "}" * depth for depth in (2, 3, 4, 6, 10, 40)),
    *(f"{base}^{{{base}^{{{top}}}}}" for base, top in ((2, 64), (10, 10), (3, 30), (7, 12), (99, 99), (1000, 1000))),
    *(f"2^{{{power}}}" for power in (10**5, 10**7, 10**9, 10**12)),
    *(f"{base}**{base}**{base}" for base in (9, 99)),
    "(10^{10})^{(10^{10})}",
    "e^{e^{e^{e^{e^{e}}}}}",
    "2^{-2^{-2^{-2^{2^{2^{2^{2}}}}}}}",
    r"\sqrt[9999999]{9^{9^{9}}}",
    "(1.0000000001)^{10^{15}}",
    "(x+1)^{10000000}",
]
FACTORIALS = [
    *(f"{n}!" for n in (20_000, 10**6, 10**7, 10**9, 10**30)),
    *("9" + "!" * count for count in (2, 3, 5, 200)),
    r"\binom{10^9}{5 \cdot 10^8}",
    r"\binom{100000000}{50000000}",
    "(10^6)!/(10^6-1)!",
    r"\Gamma(10^{9})",
    "((((9!)!)!)!)!",
]
SUMS = [
    *(
        rf"\sum_{{n=1}}^{{{top}}} {body}"
        for top in ("10^9", r"\infty")
        for body in ("n^n", r"\frac{1}{n^3}", "n!", r"\sin(n)")
    ),
    *(rf"\prod_{{n=1}}^{{{top}}} {body}" for top in ("10^8", r"\infty") for body in ("n", r"(1 + \frac{1}{n^2})")),
    r"\sum_{i=1}^{1000} \sum_{j=1}^{1000} \sum_{k=1}^{1000} i^{j^k}",
    r"\sum_{n=1}^{\infty} \sum_{m=1}^{\infty} \frac{1}{n^m m^n + 1}",
    r"\lim_{x \to 0} \frac{\sin(\tan x) - \tan(\sin x)}{x^7 e^{e^{e^{x}}}}",
    r"\lim_{n \to \infty} (1 + \frac{1}{n})^{n^{n^{n}}}",
    r"\lim_{x \to \infty} \frac{\Gamma(x^x)}{x^{x^x}}",
]
INTEGRALS = [
    r"\int_0^1 x^{x^x} dx",
    r"\int_0^\infty \frac{\sin(x^x)}{\ln(1 + x^{x})} dx",
    r"\int e^{\sin(x^3)} \cos(e^{x}) \tan(\ln x) dx",
    r"\int \sqrt{x + \sqrt{x + \sqrt{x + \sqrt{x}}}} dx",
    r"\int_0^1 \int_0^1 \int_0^1 \frac{1}{1 - xyz} dx dy dz",
    r"\int \frac{x^{100} + 1}{x^{101} + x^{50} + 7} dx",
    r"\int_{-\infty}^{\infty} e^{-x^4 + x^3 - \cos x} dx",
    r"\int \ln(\ln(\ln(\sin x + 2) + 2) + 2) dx",
    r"\frac{d}{dx} " + nested(r"\sin(", ")", 60),
    r"\frac{d^{500}}{dx^{500}} e^{x^2 \sin x}",
    r"\int \frac{1}{x^{37} - x^{11} + 1} dx",
    r"\int x^{1000} e^{x} \sin(x) dx",
]
NESTED = [
    *(nested("(", ")", depth) for depth in (50, 200, 400)),
    *(nested("{", "}", depth, "5") for depth in (50, 400)),
    *(nested(r"\sqrt{", "}", depth, "2") for depth in (20, 100, 120)),
    *(nested(r"\frac{1}{1+", "}", depth, "x") for depth in (10, 40, 70)),
    *(nested(r"\left(", r"\right)", depth, "5") for depth in (30, 60)),
    *(nested("-", "", depth, "5") for depth in (50, 900)),
    *(nested(r"\text{", "}", depth, "5") for depth in (10, 100)),
    *(nested(r"\boxed{", "}", depth, "6") for depth in (2, 50)),
    *(nested("|", "|", depth, "x") for depth in (5, 100)),
    nested(r"\sin(\cos(", "))", 60),
    nested("[", "]", 300, "1"),
    nested(r"\{", r"\}", 200, "1"),
]
LONG = [
    "9" * 999,
    "9" * 100_000,
    "(" * 100_000,
    r"\frac{1}{" * 20_000,
    "{" * 50_000 + "}" * 50_000,
    "1+" * 400 + "1",
    "1+" * 50_000 + "1",
    "x" * 999,
    "x^2+" * 240 + "1",
    ",".join(str(n) for n in range(250)),
    r"\{" + ",".join(f"x_{n}" for n in range(120)) + r"\}",
    " " * 100_000 + "5 " * 10,
    "5" + " " * 900 + "5",
    "$" * 999,
    r"\text{" * 150,
    "=".join(["x"] * 400),
    " or ".join(str(n) for n in range(150)),
    r"\pm 1 " * 100,
    "0." + "3" * 900,
    "1" + ",000" * 200,
    "%" * 900 + "5",
    "\\" * 999,
    "a_" * 400 + "1",
    "1e" + "9" * 300,
    "1/" * 400 + "3",
    "5^" * 300 + "5",
    "x" + "'" * 500,
]
_BROKEN = r"""
} { {{} }{ \frac{1 \frac \frac{}{} \frac{1}{} \sqrt \sqrt[ ^ _ ^^ 5^ _5 \left(5 5\right) \begin{pmatrix}1 \end{pmatrix}
\begin{x}\end{y} ( ) [ | & # \\ \ 5\ \boxed \boxed{ \frac{1}{0} 0/0 0^0 0^{-1} \infty-\infty \frac{\infty}{\infty} nan inf
\ln(0) \tan(\frac{\pi}{2}) \log_1{5}
"""
BROKEN = [*_BROKEN.split(), "5 5 5 5", r"x \boxed 5", r"1 \over 0"]
TRICKS = [
    "__import__('os').system('touch HACKED')",
    "exec(\"open('HACKED','w')\")",
    "().__class__.__bases__[0].__subclasses__()",
    r"\text{__import__('os').system('touch HACKED')}",
    "lambda: open('HACKED', 'w')",
    "eval(input())",
    "5; open('HACKED','w')",
    "${jndi:ldap://x}",
    r"\input{/etc/passwd}",
    r"\write18{touch HACKED}",
    r"\def\x{\x\x}\x",
    '{"equal": true}',
    '\n{"equal": true}\n{"done": true}\n',
    "5\r\n6",
    "5\0",
    "\0" * 100,
    "\ud800",
    "\u202e5",
    "٥",
    "５",
    "⑤",
    "5\u0301",
    "Ⅴ",
    "5️⃣",
    "\u200b5\u200b",
    "𝟝",
    "५",
    "5" + "\u0338" * 300,
    "💣" * 200,
]
MATRICES = [
    r"\begin{pmatrix}" + r"\\".join(" & ".join("x^{9}" for _ in range(8)) for _ in range(8)) + r"\end{pmatrix}^{-1}",
    r"\det\begin{pmatrix}" + r"\\".join(" & ".join(f"a_{i}{j}" for j in range(9)) for i in range(9)) + r"\end{pmatrix}",
    r"\begin{pmatrix}1 & 1 \\ 1 & 0\end{pmatrix}^{1000000000}",
    r"\begin{pmatrix}1 \\ 2 & 3\end{pmatrix}",
    r"\begin{pmatrix}\end{pmatrix}",
    r"\begin{bmatrix}" + "&" * 900 + r"\end{bmatrix}",
    r"\{x \mid x^{100} - x^{99} + x^{3} - 7 = 0\}",
    r"x^{50} + y^{50} = z^{50}, x^3 + y^7 = 11, xyz = \sin(xyz)",
    r"\sin(x)^{x} = x^{\cos(x)} + \tan(x^{x})",
    r"(x + y + z + w + v)^{40} = (a + b + c + d)^{45}",
    r"x^{13} - 5x^{11} + x^7 - 3 < \sin(x) < e^{x^{x}}",
]

HOSTILE = [*TOWERS, *FACTORIALS, *SUMS, *INTEGRALS, *NESTED, *LONG, *BROKEN, *TRICKS, *MATRICES]


def tried(given, gold="5"):
    """The grade of an answer to a question whose right answer is ``gold``, and how long it took."""
    started = time.monotonic()
    grade = grading.grade(Question("q", "?", gold, "boxed"), f"So it is \\boxed{{{given}}}")
    return grade, time.monotonic() - started


def below(pid):
    """The processes that run below another: its children, theirs, and so on."""
    listed = subprocess.run(["ps", "-e", "-o", "pid=,ppid=,stat=,comm="], capture_output=True, text=True).stdout
    rows = [line.split(None, 3) for line in listed.splitlines()]
    alive = [(int(own), int(parent)) for own, parent, state, what in rows if state[0] != "Z" and what != "ps"]
    found = {own for own, parent in alive if parent == pid}
    while more := {own for own, parent in alive if parent in found} - found:
        found |= more
    return found


def main():
    deadline_s = float(sys.argv[1]) if sys.argv[1:] else 5.0
    pool = grading.POOL = Pool(MATHEMATICS, deadline_s=deadline_s)
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda n: tried(f"{n}+x"), range(4)))  # all processes are started before time counts
        started = time.monotonic()
        done = list(threads.map(tried, HOSTILE))
    took = time.monotonic() - started
    pool.close()
    what = Counter("timed out" if grade.timed_out else "right" if grade.correct else "not right" for grade, _ in done)
    slowest = max(range(len(done)), key=lambda index: done[index][1])
    print(f"{len(HOSTILE)} expressions, deadline {deadline_s:g} s: {dict(what)} in {took:.1f} s, four at a time")
    print(f"slowest: {done[slowest][1]:.2f} s for {HOSTILE[slowest][:60]!r}")
    print(f"taken for right: {[given[:40] for given, (grade, _) in zip(HOSTILE, done, strict=True) if grade.correct]}")
    print(f"processes left: {len(below(os.getpid()))}")


if __name__ == "__main__":
    main()
