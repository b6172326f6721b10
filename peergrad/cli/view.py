"""The command ``peergrad view``: runs, evaluations and transcripts in the browser, or as a page to send."""

from __future__ import annotations

import secrets
import webbrowser
from pathlib import Path
from typing import Annotated

import tyro

from peergrad.cli.main import Flag, say
from peergrad.cli.serve import bound_socket
from peergrad.debate.errors import UserError
from peergrad.debate.settings import install_hint


def command(
    paths: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="PATH")] = (),
    /,
    export: Path | None = None,
    max_mb: float | None = None,
    host: str = "127.0.0.1",
    port: int = 0,
    no_open: Flag = False,
) -> None:
    """Look at runs, evaluations and transcripts in the browser, live while a run goes on.

    Args:
        paths: Runs, evaluations, transcripts, or folders of them; none: runs, evals and debates here.
        export: Write the same page to FILE.html, or to a new folder, to be opened without a server.
        max_mb: How large an export may become, in MB; unset, 20 for a file and 1000 for a folder.
        host: The address to listen at. Any other than this machine's own lets whoever has the token look.
        port: And its port; 0 takes a free one.
        no_open: Only print the address.
    """
    from peergrad.web.sources import DEFAULTS

    chosen = paths or tuple(Path(name) for name in DEFAULTS if Path(name).is_dir())
    if not chosen:
        raise UserError("PATH: is missing; give a run, an evaluation, a transcript, or a folder of them")
    if export is not None:
        from peergrad.web.export import export_page

        print(export_page(chosen, export, max_mb))
        return
    try:
        import uvicorn

        from peergrad.web.app import application
    except ImportError as error:
        raise UserError(f"view: needs {error.name}; {install_hint('web')}, or give --export FILE.html") from None
    from peergrad.web.index import cache_folder
    from peergrad.web.library import Library

    library = Library(chosen, cache_folder())
    if not library.shelves:
        raise UserError(f"{chosen[0]}: holds no run, evaluation or transcript; give another place")
    bound = bound_socket(host, port)
    token, port = secrets.token_urlsafe(24), bound.getsockname()[1]
    address = f"http://{f'[{host}]' if ':' in host else host}:{port}/?token={token}"
    say(f"{len(library.shelves)} to look at; Ctrl-C stops")
    print(address, flush=True)
    if not no_open:
        webbrowser.open(address)
    app = application(library, token, host=host, port=port)
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1, lifespan="on", server_header=False)
    uvicorn.Server(config).run(sockets=[bound])
