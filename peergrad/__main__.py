"""``python -m peergrad``."""

from peergrad.cli.main import main

main()
