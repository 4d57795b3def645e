"""The small GPT, and the factory for any other model."""
