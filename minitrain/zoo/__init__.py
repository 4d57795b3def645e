"""Real data-parallel bugs, and what they are planted in: each check seen to fail."""
