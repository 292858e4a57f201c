"""Solvers: frozen problem in, result with its optimality measure out."""
