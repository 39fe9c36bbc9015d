"""DECIDES: the rules of the product as plain functions on values. No clock, no database, no network."""
