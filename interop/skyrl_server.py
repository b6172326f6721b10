"""SkyRL's Tinker server, started in an environment that pip made: ``python interop/skyrl_server.py --base-model FOLDER …``.

SkyRL 0.3.0 starts under ``uv run`` on Python 3.12 only. Both are put right here, from outside; what it computes is not
touched. The options are those of ``python -m skyrl.tinker.api``.
"""

from __future__ import annotations

import argparse
import sys
import typing
from typing import Any

import typing_extensions

ENGINE = "engine"  # the first argument of the process that computes; the server starts it


def serve() -> None:
    """The server, as SkyRL's own ``__main__`` starts it, but for the command of its engine."""
    import uvicorn
    from skyrl.tinker import api
    from skyrl.tinker.config import EngineConfig, add_model, config_to_argv

    def command(_: list[str], config: Any) -> list[str]:
        return [sys.executable, __file__, ENGINE, *config_to_argv(config)]

    api._build_uv_run_cmd_engine = command  # its own reads the flags of a `uv run` above it, and refuses if there is none
    parser = argparse.ArgumentParser()
    add_model(parser, EngineConfig)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    given = vars(parser.parse_args())
    host, port = given.pop("host"), given.pop("port")
    api.app.state.engine_config = EngineConfig.model_validate(given)
    uvicorn.run(api.app, host=host, port=port)


def main() -> None:
    if sys.version_info < (3, 12):  # pydantic refuses the TypedDict of these Pythons
        typing.TypedDict = typing_extensions.TypedDict  # type: ignore[assignment]
    if sys.argv[1:2] == [ENGINE]:
        del sys.argv[1]
        from skyrl.tinker import engine

        engine.main()
    else:
        serve()


if __name__ == "__main__":
    main()
