"""Checks of data-parallel training for any model, batches and loss."""
