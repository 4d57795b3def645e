"""The witness: an independent check, which shares only the model with the run.

Files of this folder import nothing else from minitrain. The witness trusts the run only
for the starting state of each sampled step. Read ``record`` and ``examine`` first.
"""
