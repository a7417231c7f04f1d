"""The benchmark of the paper's appendix as a command, beside peers where they are at hand."""
