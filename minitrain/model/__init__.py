"""The small GPT, and the factory for other models."""
