"""The command ``peergrad version``."""

from peergrad import __version__


def command() -> None:
    """Print the version."""
    print(__version__)
