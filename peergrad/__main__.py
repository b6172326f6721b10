"""``python -m peergrad``."""

from peergrad.cli import main

main()
