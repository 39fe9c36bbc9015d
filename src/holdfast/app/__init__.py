"""JOINS: one function per use case."""
