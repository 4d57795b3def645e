"""What minitrain doctor tries."""
