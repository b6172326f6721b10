"""Answers that are meant to hang, flood, crash or trick the grader: none holds it up, none is left behind."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from peergrad.tasks import grading
from peergrad.tasks.base import TIMED_OUT
from peergrad.tasks.pool import Pool
from tests.tasks.hostile import HOSTILE, MATHEMATICS, below, tried

pytestmark = pytest.mark.alone

MARGIN_S = 60.0  # only a hang exceeds it, however busy the machine is; alone, all take at most 0.5 s
HANGS = "9^{9^{9^{9}}}"


@pytest.fixture
def pool(monkeypatch):
    def open_pool(deadline_s, workers):
        made = Pool(MATHEMATICS, deadline_s=deadline_s, workers=workers)
        monkeypatch.setattr(grading, "POOL", made)
        grading._compared.cache_clear()
        with ThreadPoolExecutor(workers) as threads:  # all are started before time counts
            list(threads.map(lambda n: tried(f"{n}+x"), range(workers)))
        opened.append(made)
        return made

    grading.POOL.close()
    opened = []
    yield open_pool
    for made in opened:
        made.close()
    grading._compared.cache_clear()


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.slow, id="two hundred"), 4])
def test_hostile_expressions(every, pool, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before, deadline_s = below(os.getpid()), 0.4
    made = pool(deadline_s, 4)
    assert len(set(HOSTILE)) >= 200
    with ThreadPoolExecutor(4) as threads:
        done = list(threads.map(tried, HOSTILE[::every]))
    slowest, given = max((took, given) for given, (_, took) in zip(HOSTILE[::every], done, strict=True))
    assert slowest < deadline_s + MARGIN_S, given[:80]
    assert sum(grade.timed_out for grade, _ in done) > 20 / every
    assert all(grade.answer is None and not grade.correct for grade, _ in done if grade.timed_out)
    right = [given for given, (grade, _) in zip(HOSTILE[::every], done, strict=True) if grade.correct]
    assert set(right) <= {"-" * 50 + "5", r"x \boxed 5", "5\0"}  # which are fives
    made.close()
    assert below(os.getpid()) == before
    assert not list(tmp_path.iterdir())


def test_the_pool_goes_on_after_anything(pool):
    made = pool(0.5, 1)
    for given in (HANGS, "2^5", r"\int x^{1000} e^{x} \sin(x) dx", "2^5", HANGS, r"\sqrt{1024}"):
        grade, _ = tried(given, "32")
        assert grade == TIMED_OUT or grade.correct == (given in ("2^5", r"\sqrt{1024}"))
    (worker,) = below(os.getpid())
    os.kill(worker, signal.SIGKILL)
    assert tried("4 \\times 8", "32")[0].correct
    made.close()
    assert tried("8 \\times 4", "32")[0].correct


def test_nothing_is_left_when_the_process_is_killed():
    code = "from tests.tasks.hostile import *; grading.POOL = Pool(MATHEMATICS, deadline_s=3.0)"
    code += f"; print(tried('x+1'), flush=True); tried({HANGS!r})"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        process.stdout.readline()
        until = time.monotonic() + MARGIN_S
        while len(started := below(process.pid)) < 2 and time.monotonic() < until:
            time.sleep(0.02)
        assert len(started) == 2  # the worker, and its child that hangs
        process.kill()
    until = time.monotonic() + 3.0 + MARGIN_S
    while any(map(running, started)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(running, started))


def running(pid):
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True).stdout.strip()
    return bool(state) and not state.startswith("Z")
