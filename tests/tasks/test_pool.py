"""The pool calls any function in a process that can be killed, whatever the function or what it runs does."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from peergrad import Question, UserError
from peergrad.tasks.pool import Pool
from tests.tasks.hostile import below

DEADLINE_S = 1.0


def add(a, b):
    return a + b


def early():
    yield "known early"
    yield {"more": [1.5, None]}
    while True:
        pass


def echo(value):
    os.write(1, b"printed")
    return value


def run(program):
    """What a program leaves in ``result``."""
    space = {}
    exec(program, space)
    return space["result"]


@pytest.fixture(scope="module")
def pool():
    made = Pool(f"{__name__}:run", deadline_s=DEADLINE_S, memory=1 << 28, workers=2)
    yield made
    made.close()


def test_any_function_by_its_import_path():
    adder, teller, speaker = (Pool(f"{__name__}:{name}", deadline_s=DEADLINE_S) for name in ("add", "early", "echo"))
    assert adder.call(2, 3) == 5
    assert adder.call("a", 3) is None  # it raises
    assert teller.call() == {"more": [1.5, None]}
    payload = Question("q", "?", payload={"tests": [["f(1)", 2]], "x": {"y": None}}).payload
    assert speaker.call(payload) == {"tests": [["f(1)", 2]], "x": {"y": None}}
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(adder.call, range(40), range(40))) == [2 * n for n in range(40)]
    for made in (adder, teller, speaker):
        made.close()


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("no_such_module:f", "ModuleNotFoundError"),
        (f"{__name__}:subtract", "has no attribute 'subtract'"),
        ("tests.tasks.test_pool", "has no attribute"),
    ],
)
def test_what_can_not_be_imported_is_a_sentence(path, why):
    with pytest.raises(UserError, match=f"{path}: can't be called in a process of its own .*{why}"):
        Pool(path).call()


FAKE = b'{"result": "faked"}\n' * 2
HOSTILE = {
    "loops": "while True: pass",
    "sleeps": "import time; time.sleep(1e6)",
    "loops without an alarm": "import signal; signal.setitimer(signal.ITIMER_REAL, 0)\nwhile True: pass",
    "ignores signals": "import signal, time\nfor s in (14, 15, 2): signal.signal(s, signal.SIG_IGN)\ntime.sleep(1e6)",
    "takes all memory": "result = []\nwhile True: result.append(bytearray(1 << 24))",
    "a result without end": "result = 'x' * (1 << 24)",
    "a result too deep": "result = 1\nfor _ in range(100_000): result = [result]",
    "a number without end": "result = 10 ** 100_000",
    "no JSON": "result = object()",
    "raises": "1 / 0",
    "leaves": "import sys; sys.exit(0)",
    "leaves at once": "import os; os._exit(0)",
    "crashes": "import ctypes; ctypes.string_at(0)",
    "recurses": "f = lambda: f()\nf()",
    "reads": "import sys; sys.stdin.read(); input()",
    "closes everything": "import os; os.closerange(0, 256)",
    "writes to stdout": f"import os; print({FAKE!r}.decode(), flush=True); os.write(1, {FAKE!r}); os.write(2, {FAKE!r})",
    "forks": "import os, time\nfor _ in range(5):\n    if not os.fork(): time.sleep(1e6)\nos._exit(0)",
    "kills its worker": "import os, signal; os.kill(os.getppid(), signal.SIGKILL)",
}


@pytest.mark.alone
@pytest.mark.parametrize("what", HOSTILE)
def test_no_program_holds_it_up(pool, what):
    pool.call("result = 1")  # a process is there before time counts
    before, started = below(os.getpid()), time.monotonic()
    assert pool.call(HOSTILE[what]) is None
    assert time.monotonic() - started < 60  # it ended, whatever the machine is busy with
    assert pool.call("result = [1, 'two']") == [1, "two"]
    if what != "kills its worker":
        assert below(os.getpid()) == before  # nothing is left, not even what it has started


ESCAPE = """
import os, time
for number in range(3):
    if not os.fork():
        os.setsid()
        os.fork()
        open(f"{folder}/{os.getpid()}", "w").close()
        time.sleep(1e6)
while len(os.listdir(folder)) < 6: time.sleep(0.01)
result = 1
"""


def test_nothing_that_a_program_starts_outlives_its_call(pool, tmp_path):
    assert pool.call(f"folder = {str(tmp_path)!r}\n{ESCAPE}") == 1
    assert [path.name for path in tmp_path.iterdir() if Path(f"/proc/{path.name}").exists()] == []


@pytest.mark.alone
def test_a_program_speaks_for_itself_alone(pool):
    """It may write to any pipe it finds: its own result is what it says, and the next call's is not."""
    everywhere = f"import os\nfor fd in range(3, 64):\n    try: os.write(fd, {FAKE!r})\n    except OSError: pass\nresult = 3"
    assert pool.call(everywhere) == 3
    assert pool.call("result = 4") == 4


FORGE = """
import os
for fd in range(64):
    try:
        os.write(os.open(f"/proc/{os.getppid()}/fd/{fd}", os.O_WRONLY), %r)
    except OSError:
        pass
result = "mine"
"""


@pytest.mark.parametrize("line", [b'{"result": "forged"}\n', b'{"call": "x", "result": "forged"}\n', b"garbage\n", b"{}\n"])
def test_no_program_can_answer_for_its_worker(pool, line):
    assert pool.call(FORGE % line) in ("mine", None)
    assert [pool.call(f"result = {n}") for n in range(3)] == [0, 1, 2], "later calls have results of their own"


def test_no_program_is_given_keys(pool, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    monkeypatch.setenv("HF_TOKEN", "hf-secret")
    monkeypatch.setenv("DATABASE", "postgres://me:secret@host")  # a secret by another name
    pool.close()
    given = pool.call("import os; result = sorted(os.environ)")
    assert set(given) <= {"PATH", "LD_LIBRARY_PATH", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "LC_CTYPE"}
