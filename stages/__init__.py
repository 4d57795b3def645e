"""Pipeline stages: thin scripts that read params, call minitrain and write files."""

import sys

from minitrain.core.errors import LAB, PACKAGES, require_packages

# for python -m stages.NAME only
if sys.argv[0] == "-m":
    require_packages(f"{PACKAGES} {LAB}")
