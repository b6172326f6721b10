"""What a person sees while a run goes: plain lines without a terminal, nothing a model said can move the cursor."""

import io
from pathlib import Path

from rich.console import Console

from peergrad.debate.transcript import read_file
from peergrad.debate.types import Reply, Tokens
from peergrad.measure.alarms import Alarm
from peergrad.runs.folder import Progress
from peergrad.terminal.training import RunView, before_and_after

GOLDEN = Path(__file__).parent.parent / "golden"
LINE = {"replies/readable": 0.5, "votes/per_due_turn": 0.25, "debates/without_signal": 0.0, "debates/dropped": 1.0}
LINE |= {"tokens/sampled_per_s": 80.0, "votes/due_turns_with_vote": 0.25}


def shown(terminal, act):
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=terminal, width=100, highlight=False)
    with RunView(console, 10) as screen:
        act(screen)
        if terminal:
            screen._live.refresh()
    return stream.getvalue()


def test_plain_lines():
    def act(screen):
        screen.begin("warm start", 2, Progress())
        screen.line("warm", Progress(0, 1), {"warm/loss": 0.9, "time/train_s": 3.0})
        screen.begin("sampling", 4, Progress(3))
        screen.debate(None)
        screen.line("train", Progress(3), LINE)
        screen.line("eval", Progress(3), {"eval/direct/sums/correct": 0.25, "eval/debate/sums/replies/readable": 1.0})

    text = shown(False, act)
    assert "\x1b" not in text
    assert "warm start 1/2: loss 0.900" in text
    assert "step 3/10: readable 50%, votes per due turn 0.25, no signal 0%, dropped 1, tok/s 80" in text
    assert "left" in text
    assert "direct/sums/correct 25%, debate/sums/replies/readable 100%" in text


def test_a_terminal_shows_the_running_step():
    debate = next(read_file(GOLDEN / "worked.jsonl"))
    reply = Reply("hm", tokens=Tokens.of([1], [1, 2, 3], [0.0, 0.0, 0.0], [0, 1, 2]))

    def act(screen):
        screen.line("train", Progress(2), LINE)
        screen.begin("sampling", 4, Progress(3))
        screen._live.refresh()
        for _ in range(6):
            screen.replied(None, reply)
        screen.debate(debate)

    text = shown(True, act)
    assert "step 2/10: readable 50%" in text, "a line that stays"
    assert "step 3/10  waiting for replies for 0 s" in text
    assert text.index("0 of 4 debates, 0 replies, 0 tokens") < text.index("1 of 4 debates, 6 replies, 18 tokens")
    assert "left" in text
    assert "readable ▅" in text
    last = text[text.index("last debate:") :]
    assert debate.question.text in last
    assert "Agent 0: " in last


def test_where_no_vote_is_due_there_is_no_curve_of_votes():
    alone = {name: value for name, value in LINE.items() if not name.startswith("votes/")}
    text = shown(True, lambda screen: screen.line("train", Progress(2), alone))
    assert "readable ▅" in text
    assert "due turns with a vote" not in text


def test_time_left_is_always_on_the_screen():
    assert "time left: known after the first step" in shown(True, lambda screen: screen.begin("sampling", 4, Progress(1)))
    assert "loading the model for 0 s" in shown(True, lambda _: None)


def test_what_a_model_or_a_file_said_is_harmless():
    evil = "x\x1b[2J\x1b]0;owned\x07\r\n\u202e[red]y"

    def act(screen):
        screen.say(evil)
        screen.warn(evil)
        screen.alarm(Alarm("noise", evil, evil, (evil,)))

    text = shown(False, act)
    assert not {"\x1b", "\x07", "\r", "\u202e"} & set(text)
    assert "[red]y" in text


def test_before_and_after():
    stream = io.StringIO()
    counts = [{"replies/readable": s / 10, "replies/read": 7 - s // 5 * 2, "mine": 1.5} for s in range(10)]
    steps = [{"phase": "train", "step": s, "warm": 0} | count for s, count in enumerate(counts)]
    alone = {"eval/direct/sums/answers": 16}
    evals = [{"phase": "eval", "step": s, "warm": 0, "eval/direct/sums/correct": 0.5 - s / 2} | alone for s in (0, 1)]
    before_and_after(Console(file=stream, width=160), [*steps, *evals])
    rows = [line.split() for line in stream.getvalue().splitlines()]
    assert ["mine", "1.5", "1.5"] in rows
    assert next(row for row in rows if "Readable" in row)[-4:] == ["5%", "14", "85%", "10"]
    assert next(row for row in rows if row[:1] == ["Right"])[-4:] == ["50%", "16", "0%", "16"]
    assert stream.getvalue().splitlines()[0] == (
        "Better: readable replies. Worse: right answers alone, held out. "
        "Where there are fewer than 30 cases, chance may be all of it."
    )
    before_and_after(Console(file=stream), [])
