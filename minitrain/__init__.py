"""minitrain: a reproducible laboratory for data-parallel training.

Importing the package is cheap on purpose (no torch): stages that only handle
text or tables start in a fraction of a second.
"""

__version__ = "0.1.0"
