"""A simulator: seeded programs, workers, people and faults over a real SQLite file under a virtual clock."""
