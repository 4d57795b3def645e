"""Communication between ranks: process groups, collectives, orders of summation.

Strategies, which synchronize gradients, are in :mod:`minitrain.sync`.
"""
