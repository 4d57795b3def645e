"""Shared foundations: errors, atomic files, parameters, machine facts."""
