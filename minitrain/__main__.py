"""``python -m minitrain``: the command line."""

from minitrain.cli.main import main

main()
