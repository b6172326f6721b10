"""The ways self-play goes wrong are noticed, and healthy runs are left in peace (SPEC 9.5)."""

import asyncio
import json

import pytest

from peergrad import Parallel, Question, Scripted, advantages, score
from peergrad.debate.play import Played, play
from peergrad.learn.train import Step, Stopped
from peergrad.measure.alarms import WINDOW, alarms, fallen_answers
from peergrad.measure.metrics import DebateBatch, measure
from peergrad.runs.folder import Run
from peergrad.runs.training import train_run
from peergrad.tasks.base import Questions
from peergrad.tasks.open import regrade
from tests.bandit import Bandit
from tests.helpers import short
from tests.runs.test_run import settings
from tests.test_own_rewards import here  # noqa: F401 (a fixture)

TASK = Questions("sums", tuple(Question(f"q{i}", "What is 17 + 25?", "42", "boxed") for i in range(8)), regrade)


def step(script, agents=3):
    protocol = Parallel(agents=agents, max_rounds=2)
    debates = tuple(asyncio.run(play(protocol, question, Scripted(script))) for question in TASK.questions)
    scored = tuple(score(debate) for debate in debates)
    centred = tuple(map(tuple, advantages(scored)))
    return Step(0, 1e-3, Played(debates, {}), scored, centred, (), None, 1.0)


def sounding(*steps):
    history = [measure(DebateBatch.of(one.scored, TASK, "train_sums", one)) for one in steps]
    return {alarm.name: alarm for alarm in alarms(history, steps[-1])}


def healthy(ask):
    """Agent 0 is wrong and is voted down; somebody else forgets to vote now and then."""
    mine = ask.agent == 0 and ask.turn < 3
    others = [agent for agent in range(3) if agent != ask.agent]
    vote = f"Agent {others[1]} > Agent {others[0]}" if 0 in others else "N/A"
    return short(vote if ask.turn >= 3 else "N/A", r"\boxed{41}" if mine else r"\boxed{42}")


def alike(ask):
    return short("N/A" if ask.turn < 3 else "Agent 1 = Agent 2" if ask.agent == 0 else "N/A", r"\boxed{41}")


def silent(ask):
    return short("N/A", r"\boxed{42}" if ask.agent else r"\boxed{41}")


def garbled(_):
    return "<evaluation>I think the answer is forty-two"


def seated(ask):
    """Every seat casts the same ballot, whatever was said."""
    first, second = ((ask.agent + step) % 4 for step in (1, 2))
    return short(
        f"Agent {first} > Agent {second}" if ask.turn >= 4 else "N/A", r"\boxed{42}" if ask.agent else r"\boxed{41}"
    )


def tossed(ask):
    """Votes for the wrong and for the right one equally often."""
    first, second = (agent for agent in range(3) if agent != ask.agent)
    odd = int(ask.debate[1:]) % 2
    vote = f"Agent {first if odd else second} > Agent {second if odd else first}"
    return short(vote if ask.turn >= 3 else "N/A", r"\boxed{42}" if ask.agent else r"\boxed{41}")


def test_9_5_a_healthy_run_is_quiet():  # SPEC 9.5
    good = step(healthy)
    assert sounding(*[good] * (WINDOW + 3)) == {}
    assert sounding(step(garbled)) == {}  # too early to say


@pytest.mark.parametrize("bad", [garbled, silent])
def test_9_5_format_collapse(bad):  # SPEC 9.5
    found = sounding(*[step(healthy)] * WINDOW, *[step(bad)] * WINDOW)
    assert "fell to 0%" in found["format collapse"].seen
    assert len(found["format collapse"].debates) == 3
    assert "learning rate" in str(found["format collapse"])


def test_9_5_degenerate_consensus():  # SPEC 9.5
    found = sounding(*[step(alike)] * WINDOW)
    assert (
        "same answer in 100%" in found["degenerate consensus"].seen or "teach nothing" in found["degenerate consensus"].seen
    )


def test_9_5_random_noise():  # SPEC 9.5
    found = sounding(*[step(tossed)] * WINDOW)
    assert "random noise" in found
    assert "50% of" in found["random noise"].seen


def test_9_5_copied_ballots():  # SPEC 9.5
    found = sounding(*[step(seated, agents=4)] * WINDOW)["copied ballots"]
    assert "100% of the votes" in found.seen
    assert len(found.debates) == 3
    assert sounding(*[step(seated, agents=4)] * (WINDOW - 1)) == {}


def evaluated(*shares, asked=100):
    return [{"eval/direct/sums/correct": share, "eval/direct/sums/answers": asked} for share in shares]


def test_9_5_fallen_answers():  # SPEC 9.5
    # Two standard errors of 0.6 and 0.46 of 100 questions: 2 * sqrt((0.6 * 0.4 + 0.46 * 0.54) / 100) = 0.1397.
    found = fallen_answers(evaluated(0.6, 0.7, 0.46))
    assert found.seen == "right answers alone to 100 held-out questions fell to 46%, from 60% at first"
    assert fallen_answers(evaluated(0.6, 0.4, 0.461)) is None  # 0.139: what it was in between is past
    assert fallen_answers(evaluated(0.6)) is None
    for odd in (None, "0.1", float("nan"), True, -1.0, 7.0, 1e99):
        assert fallen_answers([*evaluated(0.6), *evaluated(odd)]) is None
        assert fallen_answers([*evaluated(odd), *evaluated(0.5)]) is None
    assert fallen_answers([*evaluated(0.6), *evaluated(0.1, asked=None)]) is None
    assert fallen_answers([*evaluated(None), {}, *evaluated(0.6, 0.1)])  # the first that was measured


WRONG = """
from peergrad import Stream
def wrong(debate, tally, truth):
    values = tuple(None if truth(turn) is None else 1.0 - truth(turn) for turn in range(len(debate.turns)))
    return [Stream("wrong", "turn", values, ("solution",), follows="solution")]
"""


def test_a_run_that_forgets_what_it_could_says_so_and_stops_if_asked_to(here):  # noqa: F811
    (here / "mine.py").write_text(WRONG)
    rows = [json.dumps({"question": f"What is 40 + {n}?", "answer": "42"}) for n in range(48)]
    (here / "sums.jsonl").write_text("\n".join(rows))

    def bandit(*_):
        made = Bandit([r"\boxed{42}", r"\boxed{41}"], lambda ask: "N/A")
        made.logits[0] = 0.1  # the likeliest answer is right at first
        return made

    sums = {"task": "sums.jsonl", "reward": "mine:wrong", "batch": 8, "lr": 0.5, "warm_steps": 0}
    sums |= {"eval_questions": 32, "eval_debates": 0, "eval_every": 1, "steps": 4}
    config = settings(here / "run", stop_on_alarm=True, **sums)
    with pytest.raises(Stopped, match="fallen answers: right answers alone to 32 held-out questions fell to 0%, from 100%"):
        asyncio.run(train_run(config, load=bandit))
    before, *_, last = [line for line in Run(here / "run").metrics() if line["phase"] == "eval"]
    assert (before["alarms"], last["alarms"], last["step"] < 4) == ([], ["fallen answers"], True)
    done = asyncio.run(train_run(settings(here / "run", **sums), load=bandit))  # goes on if not asked to stop
    assert done.metrics()[-1]["step"] == 4
