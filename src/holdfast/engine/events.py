"""Names that only the engine gives: nobody outside may answer for a task or a child, or take the place of a fact."""

OUR_EVENTS = ("xstate.", "task.done.", "task.failed.")
OUR_EVENT_IDS = ("task:", "child:", "cancel:", "resolution:", "migrate:")
