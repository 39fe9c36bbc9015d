"""REMEMBERS: the only SQL, on SQLite and PostgreSQL, and the committer that batches turns."""
