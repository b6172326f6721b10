"""The comparison of rewards as tables, and in a sentence."""

from __future__ import annotations

from peergrad.measure.rescore import Rescored
from peergrad.measure.statistics import Interval


def print_rescored(result: Rescored) -> None:
    """Print the comparison as tables, and what it says about which reward to train with."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False, markup=False)

    def show(title: str, headings: list[str], rows: list[list[str]], gap: int = 1) -> None:
        table = Table(box=box.SIMPLE_HEAD, padding=(0, gap, 0, 0))
        for index, heading in enumerate(headings):
            table.add_column(heading, justify="right" if index else "left", no_wrap=not index)
        for row in rows:
            table.add_row(*row)
        console.print(title, style="bold")
        console.print(table)

    console.print(_counts(result))
    console.print()
    numbered = [f"{number} {reward.name}" for number, reward in enumerate(result.rewards, 1)]
    show(
        "Rewards: one number per agent",
        ["reward", "follows the truth", "with signal", "top is right"],
        [
            [name, _correlation(reward.follows), _percent(reward.signal), _percent(reward.top_right)]
            for name, reward in zip(numbered, result.rewards, strict=True)
        ],
    )
    if result.random_right and result.some_right:
        console.print(
            f" For comparison: a random agent is right in {_percent(result.random_right)}, some agent in "
            f"{_percent(result.some_right)}."
        )
    console.print(" In streams, the judge's part is for votes, not for answers: hold it against the table of streams.")
    if result.same:
        console.print(f" Left out, because nothing differs here: {', '.join(result.same)}.")
    console.print()
    show(
        "Streams: one number per turn",
        ["stream", "follows the truth", "turns", "debates with signal"],
        [[one.name, _correlation(one.follows), str(one.turns or "–"), _percent(one.signal)] for one in result.streams],
    )
    show(
        "Agreement between rewards",
        ["reward", *(str(number) for number in range(1, len(numbered) + 1))],
        [
            [name, *("–" if value is None else f"{value:.2f}" for value in row)]
            for name, row in zip(numbered, result.agreement, strict=True)
        ],
        gap=0,
    )
    console.print(verdict(result))


def verdict(result: Rescored) -> str:
    """One sentence about which reward to train with, as far as the intervals allow one."""
    if not result.with_truth:
        return "These questions have no known answers, so the data does not decide which reward is better."
    best = next((reward for reward in result.rewards if reward.name == result.best), None)
    if best is None or best.follows is None:
        return "In no debate is one agent right, another wrong and their reward different, so the data does not decide."
    if best.follows.low <= 0:
        return "No reward is known to follow the truth: the data does not decide, and these votes are no safe ground yet."
    behind = [name for name, gap in result.lead.items() if gap.low > 0]
    level = [name for name in result.lead if name not in behind]
    if not level:
        return f"Train with {best.name}: it follows the truth more closely than every other reward here."
    if not behind:
        return "All rewards follow the truth, and the data does not decide which of them does best."
    less = "follows the truth less closely" if len(behind) == 1 else "follow the truth less closely"
    return f"{_list(behind)} {less} than {best.name}; the data does not decide between {_list([best.name, *level])}."


def _counts(result: Rescored) -> str:
    late = f"; {result.timed_out} answers could not be graded in time and are left out" if result.timed_out else ""
    return (
        f"debates {result.debates}, of them with known answers {result.with_truth}, "
        f"with right and wrong agents {result.mixed}{late}"
    )


def _list(names: list[str]) -> str:
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _correlation(interval: Interval | None) -> str:
    return "–" if interval is None else f"{interval.value:.2f} [{interval.low:.2f}, {interval.high:.2f}]"


def _percent(interval: Interval | None) -> str:
    return "–" if interval is None else f"{100 * interval.value:.0f} % [{100 * interval.low:.0f}, {100 * interval.high:.0f}]"
