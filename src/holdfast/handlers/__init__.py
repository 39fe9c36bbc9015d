"""ACTS: the only place where authors' code and the network run."""
