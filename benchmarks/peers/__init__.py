"""One adapter per peer library: the same objective, the same tolerance, the same answer's shape."""
