"""Communication between ranks: process groups, collectives, orders of summation.

The strategies that synchronize gradients with them are in :mod:`minitrain.sync`.
"""
