"""Communication between ranks: process groups, collectives, orders of summation."""
