"""The `weft` command: a file for each subcommand, with the arguments that it takes and a function `run`.

It is above every other package: it may import all of them, and none imports it."""

from weft.cli.main import main as main
