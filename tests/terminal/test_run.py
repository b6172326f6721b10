"""What a person sees while a run goes: plain lines without a terminal, nothing a model said can move the cursor."""

import io

from rich.console import Console

from peergrad.measure.alarms import Alarm
from peergrad.runs.folder import Progress
from peergrad.terminal.progress import RunView, before_and_after

LINE = {"replies/readable": 0.5, "votes/per_due_turn": 0.25, "debates/without_signal": 0.0, "debates/dropped": 1.0}
LINE |= {"tokens/sampled_per_s": 80.0}


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
    def act(screen):
        screen.line("train", Progress(2), LINE)
        screen.begin("sampling", 4, Progress(3))

    text = shown(True, act)
    assert "step 3/10" in text
    assert "0 of 4 debates" in text
    assert "readable" in text


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
    steps = [{"phase": "train", "step": s, "warm": 0, "replies/readable": s / 10, "mine": 1.5} for s in range(10)]
    evals = [{"phase": "eval", "step": s, "warm": 0, "eval/direct/sums/correct": s / 2} for s in (0, 1)]
    before_and_after(Console(file=stream, width=120), [*steps, *evals])
    rows = [line.split() for line in stream.getvalue().splitlines()]
    assert ["mine", "1.5", "1.5"] in rows
    assert next(row for row in rows if "Readable" in row)[-2:] == ["5%", "85%"]
    assert next(row for row in rows if "alone," in row)[-2:] == ["0%", "50%"]
    before_and_after(Console(file=stream), [])
