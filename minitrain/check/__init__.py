"""The ladder for any model, batches and loss."""
