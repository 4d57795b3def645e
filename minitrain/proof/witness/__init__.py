"""The witness: what a run should have computed, by code that shares none of it.

Nothing here imports anything of minitrain but the files of this folder, and nothing is
taken from the run on trust but the states that its steps started from. Read ``record``
first: what a run was asked for and what it wrote. ``corpus`` says which samples form a
batch and whose they are, ``gradients`` has the loss and the gradient of the mean over a
whole batch, ``optimizer`` what becomes of it, and ``examine`` puts the questions.
"""
