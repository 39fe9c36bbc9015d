"""Statecharts: read, checked, compiled, advanced. Everything here is a pure function on values."""
