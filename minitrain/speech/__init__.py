"""What a language model says, before and after training."""
