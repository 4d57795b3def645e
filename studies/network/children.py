"""CPU usage of this process and of the stages that it starts."""

from minitrain.core.cpu_load import Usage


def usage_with_children() -> Usage:
    """Read CPU usage, including exited children that were waited for. CPU time of any
    other process counts as foreign load.
    """
    return Usage.now(with_children=True)
