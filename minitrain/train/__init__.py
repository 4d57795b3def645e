"""One rank: what it is made of, the loop, and what it writes down."""
