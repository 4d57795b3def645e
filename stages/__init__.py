"""Pipeline stages: thin scripts that read params, call minitrain and write files."""

import gc
import sys

from minitrain.core.errors import LAB, PACKAGES, require_packages

# For python -m stages.NAME only: garbage collection takes a fifth of the import time of
# torch and finds nothing. run_stage enables it after the imports.
if sys.argv[0] == "-m":
    gc.disable()
    require_packages(f"{PACKAGES} {LAB}")
