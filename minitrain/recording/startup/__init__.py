"""What ``minitrain record`` adds to the environment of a command."""

STARTUP = __path__[0]  # first on PYTHONPATH: Python imports its sitecustomize.py
SETTINGS = "MINITRAIN_RECORD"  # the variable with the arguments, as JSON
