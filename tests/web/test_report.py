"""The report of a run: complete whatever the run is like, and made of nothing but our own markup."""

import asyncio
import json
import math
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from peergrad.config import preset
from peergrad.debate.personas import Persona
from peergrad.debate.play import Played, play
from peergrad.debate.protocols import Parallel, Sequential
from peergrad.debate.question import Question
from peergrad.engines.scripted import Scripted
from peergrad.measure.history import BINS
from peergrad.measure.metrics import DebateBatch, measure
from peergrad.reward.rewards import score
from peergrad.runs.folder import Progress, Run
from peergrad.settings import changed
from peergrad.tasks.arithmetic import arithmetic, teacher
from peergrad.web.report import report, write_report
from tests.helpers import full, short

HELD_OUT = arithmetic(1, count=8, split="eval")
FACTS = {
    "created": "2026-01-01T00:00:00Z",
    "versions": {"python": "3.11", "peergrad": "0.1"},
    "seed": 7,
    "model": "tiny-model",
    "task": "arithmetic",
    "questions": 1000,
}
VOID = {"meta", "br"}
ELEMENTS = """
html head meta title style body main h1 h2 h3 h4 p b em small bdi span div section article header footer dl dt dd ul li
table thead tbody tr th td figure figcaption svg desc g path text details summary
"""
ATTRIBUTES = """
lang charset http-equiv content name class id role aria-label aria-labelledby aria-hidden viewbox d x y text-anchor scope
open
"""


class Page(HTMLParser):
    """What a browser would make of a page."""

    def __init__(self, page):
        super().__init__(convert_charrefs=True)
        self.elements, self.stack, self.texts = [], [], []
        self.feed(page)
        self.close()
        assert not self.stack, "elements left open"

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.stack.append(tag)

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        if not self.stack or self.stack[-1] != "style":
            self.texts.append(data)

    def handle_comment(self, data):
        raise AssertionError(f"a comment: {data}")

    @property
    def text(self):
        return "".join(self.texts)

    def all(self, tag):
        return [attributes for found, attributes in self.elements if found == tag]


def run_in(path, facts=FACTS, **settings):
    run = Run(path / "run")
    run.begin(changed(preset("demo"), {"steps": 12} | settings, "test"), facts)
    return run


def debate(question, reply, *, agents=3, id=None, protocol=None):
    """A debate played by a script; ``reply`` is a text, or a function of debate and agent such as the teacher's."""
    rules = protocol or Parallel(agents=agents, max_rounds=2, max_tokens=2_000_000)
    script = reply if callable(reply) else lambda ask: reply
    return asyncio.run(play(rules, question, Scripted(script, tokens=False), id=id))


def voting(ask):
    others = [agent for agent in range(3) if agent != ask.agent]
    return short("N/A" if ask.seen == 0 else f"Agent {others[0]} > Agent {others[1]}", "I say \\boxed{10}", "All fine.")


def measured(debates):
    return measure(DebateBatch.of([score(one) for one in debates], HELD_OUT, "train_arithmetic"))


def trained(path, steps=10, **settings):
    """A run with evaluations before and after, and some steps between them."""
    run = run_in(path, **settings)
    for at, reply in ((0, "<evaluation>no solution"), (steps, voting)):
        debates = tuple(debate(HELD_OUT[i], reply, id=f"eval-{at}/{HELD_OUT[i].id}") for i in range(6))
        run.save_debates(f"eval_{at:06}", Played(debates, {}))
        share = 0.25 if at == 0 else 0.75
        log = {"eval/direct/arithmetic/correct": share, "eval/debate/arithmetic/correct": share / 2, "time/eval_s": 4.0}
        if at == 0:
            run.log(Progress(), "eval", log)
            for step in range(1, steps + 1):
                kept = (debate(arithmetic()[step], voting if step > 1 else "<evaluation>hm", id=f"s{step}"),)
                run.save_debates(f"step_{step:06}", Played(kept, {}))
                more = {"optim/loss": 1.0 / step, "optim/entropy": math.nan, "alarms": [], "tokens/sampled": 100.0}
                more |= {"time/sample_s": 30.0, "time/train_s": 31.0, "optim/kl_sample_train_v1": 1e-7 * step}
                if step in (4, 5, 8):
                    more["alarms"] = ["format collapse"]
                run.log(Progress(step), "train", measured(kept) | more)
        else:
            run.log(Progress(steps), "eval", log)
    return run


def check(page):
    """Only our elements, attributes, styles and policy; nothing fetched, nothing run."""
    parsed = Page(page)
    assert page.startswith("<!doctype html>\n<html")
    assert {tag for tag, _ in parsed.elements} <= set(ELEMENTS.split())
    assert {name for _, attributes in parsed.elements for name in attributes} <= set(ATTRIBUTES.split())
    assert len(parsed.all("style")) == 1
    assert "url(" not in page
    assert "@import" not in page
    policy = next(a["content"] for a in parsed.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'; style-src 'unsafe-inline'")
    assert "script" not in policy
    ids = [attributes["id"] for _, attributes in parsed.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert len(page.encode()) < 2_000_000
    for svg in parsed.all("svg"):
        assert svg.get("aria-hidden") == "true" or set(svg["aria-labelledby"].split()) <= set(ids)
    for path in parsed.all("path"):
        assert "nan" not in path["d"]
        assert "inf" not in path["d"]
    return parsed


def test_a_whole_run(tmp_path):
    run = trained(tmp_path)
    path = write_report(run)
    assert path == run.path / "report.html"
    assert path.read_text() == report(run)
    page = check(path.read_text())
    for word in (
        "tiny-model on arithmetic",
        "Not finished: 10 steps of self-play, of 12.",
        "2026-01-01T00:00:00Z",
        "peergrad 0.1",
        "format collapse sounded after step 4–5, 8",
        "2 steps each",
        "constant by construction",
        "Methodical Analyst",
        "unreadable: missing <solution>",
        "Readable replies",
        "votes: 1 > 2",
        "The same questions, before and after",
        "10 min 10 s",
    ):
        assert word in page.text, word
    assert len(page.all("details")) == 5
    assert len(page.all("article")) == 5 * 2 * 6
    headings = page.text[: page.text.index("Form and skill")]
    assert "reward" not in headings.replace("rewardstreams", "")  # the setting is there, the mean is not


def test_before_and_after_are_fifths_and_evaluations(tmp_path):
    run = run_in(tmp_path)
    run.log(Progress(), "eval", {"eval/direct/arithmetic/correct": 0.25})
    for step in range(1, 11):
        run.log(Progress(step), "train", {"replies/readable": step / 10, "votes/per_due_turn": 2.0 * (step > 5)})
    run.log(Progress(10), "eval", {"eval/direct/arithmetic/correct": 0.5})
    text = check(report(run)).text
    assert "Readable replies15.0%95.0%+80.0 points" in text
    assert "Valid votes per due turn0.002.00+2.00" in text
    assert "Right answers alone, held out25.0%50.0%+25.0 points" in text


def test_metrics_that_nobody_knows_are_shown_under_their_names(tmp_path):
    run = run_in(tmp_path)
    odd = ["votes/length", "{x}", "{0}", "a*b", "a{", "<b>bold</b>"]
    for step in (1, 2):
        known = {"pairwise_any_votes": 0.5, "lr": 1e-3, "bias/seat/0": 0.5, "train_sums/pass@3": 0.5, "text": "no number"}
        run.log(Progress(step), "train", known | dict.fromkeys(odd, 10.0 * step))
    run.log(Progress(2), "eval", {"eval/debate/sums/votes/length": 12.5, "eval/debate/sums/lr": 1.0})
    page = check(report(run))
    charts = page.text[page.text.index("Other metrics") :]
    for name in odd:
        assert name in charts
    assert "held out 12.5" in charts
    assert len(page.all("figure")) == len(odd)
    assert "pairwise_any_votes" not in page.text
    assert "votes/length10.0020.00+10.00" in page.text
    run.log(Progress(3), "train", {f"a{i}": 1.0 for i in range(100)})
    assert len(check(report(run)).all("figure")) == 24


def test_grades_and_rewards_of_turns(tmp_path):
    question = Question("q", "What is 5 + 5?", "10", "boxed", "mine")
    run = run_in(tmp_path, task="mine.jsonl")
    run.save_debates("step_000001", Played((debate(question, voting),), {}))
    text = check(report(run)).text
    assert text.count("What is 5 + 5?") == 1
    assert text.count("✓ right") == 6
    assert "gen +1.00" in text
    assert "judge +1.00" in text
    assert "There is nothing later to compare with yet." in text


def test_one_score_per_agent_and_sequential_debates(tmp_path):
    run = run_in(tmp_path, reward="win_rate", protocol="sequential")
    talk = Sequential(agents=3, max_rounds=1, max_tokens=10_000)
    replies = ("Agent 0 > Agent 1", "N/A")
    for step, votes in enumerate(replies, 1):
        one = debate(Question(f"q{step}", "Why?"), lambda ask, votes=votes: full(votes), protocol=talk)
        run.save_debates(f"step_{step:06}", Played((one,), {}))
    text = check(report(run)).text
    assert "win_rate: agent 0 +1.00, agent 1 +0.00" in text
    assert "consensus reason" in text
    assert "the questions differ" in text


def test_the_teacher_reads_well(tmp_path):
    say = teacher(0)
    run = run_in(tmp_path)
    for at in (0, 3):
        debates = []
        for index in range(2):
            question = HELD_OUT[index]
            now = debate(question, "")
            now = type(now)(now.id, question, now.protocol)
            while wave := now.protocol.wave(now):
                replies = [
                    asyncio.run(Scripted(lambda ask, d=now: say(d, ask), tokens=False).sample([ask]))[0] for ask in wave
                ]
                now = now.extend(wave, replies)
            debates.append(now)
        run.save_debates(f"eval_{at:06}", Played(tuple(debates), {}))
    assert "6 of 6 readable" in check(report(run)).text


@pytest.mark.parametrize("phases", [(), ("eval",), ("warm",), ("eval", "warm"), ("train",)])
def test_a_run_that_has_only_begun(tmp_path, phases):
    run = run_in(tmp_path)
    for phase in phases:
        at = Progress(1) if phase == "train" else Progress(0, int(phase == "warm"))
        run.log(at, phase, {"warm/loss": 2.5, "replies/readable": 0.5, "eval/direct/arithmetic/correct": 0.5, "alarms": []})
    page = check(report(run))
    assert "Not finished" in page.text
    assert bool(page.all("figure")) == bool(phases)
    if "warm" in phases:
        assert "no self-play yet" in page.text
        assert "warm step" in page.text
    if phases == ("train",):
        assert "There is only one step" in page.text


def test_updates_and_those_that_were_skipped_are_counted(tmp_path):
    run = run_in(tmp_path)
    run.log(Progress(0, 1), "warm", {"warm/skipped": 0.0})
    for step in range(1, 20):
        run.log(Progress(step), "train", {"optim/skipped": float(step == 9), "optim/updates": 1.0, "optim/retried": 0.0})
    page = check(report(run))
    assert "20 updates, 1 of them skipped." in page.text
    assert {"class": "lost"} not in page.all("p")  # 5 % and no more
    run.log(Progress(20), "train", {"optim/skipped": 0.5, "optim/updates": 4.0, "optim/retried": 3.0})
    page = check(report(run))
    assert "24 updates, 3 of them skipped; 3 micro-batches were computed again in another way." in page.text
    assert {"class": "lost"} in page.all("p")
    assert "3 of 24 updates (12%) were skipped because loss or gradient was not finite" in page.text
    assert "optim/skipped in metrics.jsonl says when" in page.text
    (run.path / "skipped").mkdir()
    (run.path / "skipped" / "step_000009.npz").write_bytes(b"")
    assert "what reproduces them is in skipped/ in the run's folder" in check(report(run)).text


def test_thousands_of_steps_are_binned(tmp_path):
    run = run_in(tmp_path, steps=5000)
    names = ["replies/readable", "votes/per_due_turn", "votes/accuracy", "optim/loss", "optim/grad_norm", "optim/entropy"]
    names += [f"reward/{stream}/seat/{seat}" for stream in ("gen", "judge", "format") for seat in range(9)]
    lines = []
    for step in range(1, 5001):
        values = {name: math.sin(step / 50 + i) if step % 7 else None for i, name in enumerate(names)}
        alarms = [f"alarm {step % 9}"] if step % 2 else []
        lines.append(json.dumps({"phase": "train", "step": step, "warm": 0, "alarms": alarms} | values))
    (run.path / "metrics.jsonl").write_text("\n".join(lines))
    page = check(report(run))
    assert "about 25 of 5,000 steps" in page.text
    assert "Finished: 5,000 steps" in page.text
    assert "3 more lines are not drawn" in page.text
    assert max(path["d"].count("L") for path in page.all("path")) < BINS


def test_a_step_done_again_counts_once(tmp_path):
    run = run_in(tmp_path)
    for step, share in ((1, 0.5), (2, 0.1), (2, 0.9), (40, 1.0)):  # after a gap, as when lines were lost
        run.log(Progress(step), "train", {"replies/readable": share, "time/train_s": 1.0})
    for correct in (0.0, 0.5):
        run.log(Progress(), "eval", {"eval/direct/arithmetic/correct": correct})
    text = check(report(run)).text
    assert "Self-play3" in text
    assert "Evaluation1" in text
    assert "Right answers alone, held out50.0%–" in text


def test_odd_values_do_not_break_a_chart(tmp_path):
    run = run_in(tmp_path)
    odd = [None, True, "x", [], 10**400, -1e308, 1e99, 5e-324, 0.0, -0.0, 1e-12, 3]
    lines = [{"phase": "train", "step": i + 1, "warm": 0, "optim/loss": v, "alarms": v} for i, v in enumerate(odd)]
    lines += [{"phase": "train", "step": s, "warm": 0} for s in (-1, 2.5, True, 10**12)]
    lines += [{"phase": p, "step": 1, "warm": 0} for p in (None, [], "other")]
    raw = "\n".join(json.dumps(line) for line in lines) + '\n{"phase": "train", "step": NaN, "warm": 0}\n{"torn'
    (run.path / "metrics.jsonl").write_text(raw)
    check(report(run))
    for value in (0.0, 7.0, -3.0, 1e50, 1e-50):
        lone = [{"phase": "train", "step": 1, "warm": 0, "optim/loss": value, "optim/entropy": value}]
        (run.path / "metrics.jsonl").write_text(json.dumps(lone[0]))
        page = check(report(run))
        assert len(page.all("figure")) == 2


def test_damaged_files_are_passed_over(tmp_path):
    run = trained(tmp_path, steps=3)
    (run.path / "debates" / "eval_000009.jsonl").write_text('{"torn')
    (run.path / "debates" / "eval_x.jsonl").write_text("")
    (run.path / "config.toml").write_text("not = [toml")
    text = check(report(run)).text
    assert "held-out questions after step 3" in text
    assert "can't be read" in text


ATTACKS = [
    "<script>alert(1)</script>",
    "</script><script src=//x.example/x.js></script>",
    '"><img src=x onerror=alert(1)>',
    "' onmouseover='alert(1)' x='",
    "<svg onload=alert(1)><title>t</title></svg>",
    "</title></style></bdi></dd></details></main></body></html><h1>mine</h1>",
    '<a href="javascript:alert(1)">javascript:alert(1)</a>',
    "<iframe srcdoc='<b>x</b>'></iframe><object data=x></object><base href=//x.example><meta http-equiv=refresh content=0>",
    "<!-- --><![CDATA[ x ]]><?php x ?>&lt;b&gt;&#60;i&#62;&notit;",
    "\u202eevil\u202c \u2066x\u2069 \u200f\u200e\u061c\ufeff\u200b",
    "\x00\x01\x08\x0b\x0c\x1b[31mred\x1b[0m\x7f\x85\x9b\u2028\u2029\r\nx\ry",
    "\ud800 half a pair \udfff",
    "\U000e0041\U000e007f tags, Z\u0351\u0352\u0353algo",
]


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("where", ["solution", "raw", "everything else"])
def test_model_text_is_only_text(tmp_path, attack, where):
    def page_with(text):
        clean = text.encode("utf-8", "replace").decode() if where == "everything else" else text
        run = run_in(
            tmp_path / str(len(text)), FACTS | ({"model": clean, "task": clean} if where == "everything else" else {})
        )
        question = Question("q", "What?", "10", "boxed")
        if where == "everything else":
            question = Question(f"q{clean}", clean, clean, "boxed", clean)
            run.log(Progress(1), "train", {f"train_{clean}/correct": 0.5, f"reward/{clean}/seat/0": 1.0, "alarms": [clean]})
            run.log(Progress(1), "eval", {f"eval/direct/{clean}/correct": 0.5, f"reward/{clean}/mean": 1.0})
        # The same grade for both: a badge that says so is no markup of theirs.
        reply = {"solution": short("N/A", text + r" \boxed{3}", text), "raw": text, "everything else": "hm"}[where]
        person = Persona(clean if where == "everything else" else "A", "", 1.0)
        rules = Parallel(agents=3, max_rounds=2, max_tokens=10_000, personas=(person,))
        for at in (0, 1):
            run.save_debates(f"eval_{at:06}", Played((debate(question, reply, protocol=rules),), {}))
        return report(run)

    page = page_with(attack)
    attacked, plain = check(page), check(page_with("harmless"))
    if where != "everything else":  # there, slashes make other metrics of it
        assert attacked.elements == plain.elements
    shown = set(attacked.text) | {char for _, a in attacked.elements for value in a.values() for char in value or ""}
    assert not shown & set(
        "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f\u061c\ufeff\u200b\u2028\u2029"
    )
    assert not {char for char in shown if (ord(char) < 32 and char not in "\n\t") or 127 <= ord(char) < 160}
    page.encode()


def test_what_is_hidden_is_shown(tmp_path):
    run = run_in(tmp_path)
    run.save_debates("step_000001", Played((debate(Question("q", "?"), "a\x1b[2Jb\u202ec"),), {}))
    assert "a␛[2Jb\ufffdc" in check(report(run)).text


@pytest.mark.parametrize("char", ["x", '"', "\u202e", "\x00", "😀", "<"])
def test_long_replies_are_clipped_with_a_notice(tmp_path, char):
    run = run_in(tmp_path)
    once = Parallel(agents=3, max_rounds=1, max_tokens=9_000_000)
    run.save_debates("step_000001", Played((debate(Question("q", "?"), short("N/A", char * 1_000_000), protocol=once),), {}))
    found = check(report(run)).text
    assert found.count("cut here: 1,500 of 1,000,000 characters") == 3
    assert len(found) < 30_000


@pytest.mark.parametrize("char", ['"', "\u202e", "😀"])
def test_many_long_debates_stay_within_two_megabytes(tmp_path, char):
    run = run_in(tmp_path)
    rules = Parallel(agents=10, max_rounds=4, max_tokens=100_000)
    long = debate(Question("q", char * 5000), short("N/A", char * 5000, char * 5000), protocol=rules)
    thin = replace(long, turns=tuple(replace(turn, asked=()) for turn in long.turns))
    for at in (1, 2):
        run.save_debates(f"step_{at:06}", Played((thin,) * 6, {}))
    page = report(run)
    assert "… 16 more turns are not shown." in check(page).text
    assert len(page.encode()) > 500_000  # the limit was tried
