"""Probes of `minitrain doctor`: the machine, and the collectives of its torch."""
