"""What ``minitrain record`` adds to the environment of a command."""

FOLDER = __path__[0]  # before others on PYTHONPATH
SETTINGS = "MINITRAIN_RECORD"  # the arguments of minitrain.record, as JSON
