"""``python -m minitrain``: the command line."""

from importlib import import_module

from minitrain.core.errors import require_packages

require_packages()
import_module("minitrain.cli.main").main()
