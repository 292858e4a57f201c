"""The experiments of the paper, one command each: ``python -m benchmarks.paper --help``."""
