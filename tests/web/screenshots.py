"""``python -m tests.web.screenshots FOLDER`` takes the pictures of the viewer, on a wide screen and on a phone."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from tests.web.browser import Viewer, opened_browser, served
from tests.web.gallery import write_gallery

PARROT = Path(__file__).parent.parent / "fixtures" / "parrot"
MOST = 160_000  # bytes of a picture
PHONE = ("runs", "run", "debates", "debate", "vote", "soft-votes")


def pages(known: dict[str, str]) -> dict[str, tuple[str, str]]:
    """The name of each picture, with its address and what must be there before it is taken."""
    run, other = known["peer-votes"], known["no-judge"]
    debate = f"#/source/{run}/debate/step_000004/0"
    return {
        "runs": ("#/", "table.runs"),
        "overlay": (f"#/?pick={run},{other}&smooth=3", ".chart canvas"),
        "run": (f"#/source/{run}?smooth=3", ".chart canvas"),
        "debates": (f"#/source/{run}/debates?part=step_000008", "table.debates"),
        "debate": (debate, ".matrix"),
        "credit": (f"{debate}?view=credit", ".turn .credit"),
        "vote": (f"{debate}?vote=4-0>2", "dialog .judged"),
        "soft-votes": (f"#/source/{known['soft-votes.jsonl']}/debate/debates/3", ".matrix.shares"),
        "across-steps": (f"#/source/{run}/question/word-problems-1", ".diff ins"),
        "compare": (f"#/compare/{known['before']}/{known['after']}", "table.list"),
    }


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        gallery = Path(name)
        write_gallery(gallery, str(PARROT))
        with opened_browser() as browser, served(cache=gallery / "cache", cwd=gallery) as url:
            for width, height in ((1280, 860), (390, 844)):
                viewer = Viewer(browser, url, width=width, height=height)
                viewer.until(lambda viewer=viewer: viewer.count(".status.finished") == 5 and "% read" not in viewer.text())
                links = viewer.page.eval_on_selector_all("a.open", "all => all.map((a) => [a.innerText.trim(), a.hash])")
                known = {text.rpartition("/")[2]: hash.split("/")[2] for text, hash in links}
                for name, (route, ready) in pages(known).items():
                    if width < 800 and name not in PHONE:
                        continue
                    viewer.go(route, f"{ready} >> nth=0")
                    if name == "soft-votes":  # it stands below what was answered
                        viewer.page.locator(ready).evaluate("(table) => table.scrollIntoView({ block: 'center' })")
                    viewer.page.wait_for_timeout(300)  # curves and scrolling
                    viewer.check()
                    picture = viewer.page.screenshot()
                    assert len(picture) < MOST, name
                    (folder / f"{name}-{width}.png").write_bytes(picture)
                viewer.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
