"""Launch, monitoring and termination of ranks and hosts; changes no result."""
