"""The ways self-play goes wrong are noticed, and healthy runs are left in peace (SPEC 9.5)."""

import asyncio

import pytest

from peergrad import Parallel, Question, Scripted, advantages, score
from peergrad.debate.play import Played, play
from peergrad.learn.train import Step
from peergrad.measure.alarms import WINDOW, alarms
from peergrad.measure.metrics import DebateBatch, measure
from peergrad.tasks.base import Questions
from peergrad.tasks.open import regrade
from tests.helpers import short

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
