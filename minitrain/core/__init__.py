"""Foundations of all other packages: errors, files, parameters, the machine."""
