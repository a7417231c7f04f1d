"""Demonstrations: small jobs on which the theory makes a sharp prediction."""
