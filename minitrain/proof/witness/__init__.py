"""The witness: what a run should have computed, by code that shares none of it.

Nothing here imports anything of minitrain but the files of this folder, and nothing is
taken from the run on trust but the states that its steps started from. Read ``record``
and ``examine`` first.
"""
