"""The stages of the pipeline: thin scripts that read params, call minitrain, write."""

import gc
import sys

from minitrain.core.errors import LAB, PACKAGES, require_packages

# As python -m stages.NAME and nothing else: what modules make while they load is no
# garbage, and to look for some takes a fifth of the import of torch. run_stage has it
# looked for again.
if sys.argv[0] == "-m":
    gc.disable()
    require_packages(f"{PACKAGES} {LAB}")
