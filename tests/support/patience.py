"""How long a test waits before it takes what it waits for to hang. No test depends on being quick: on a machine that
does ten things at once, a server may take half a minute to start."""

PATIENCE_SECONDS = 200.0
