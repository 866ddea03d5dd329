"""The `weft` command. It stands on top of everything: nothing imports it."""

from weft.cli.main import main as main
