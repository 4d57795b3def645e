"""The stages of the pipeline: thin scripts that read params, call minitrain, write."""
