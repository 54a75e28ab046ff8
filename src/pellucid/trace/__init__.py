"""What happened: the protocols through which the engine can be watched. Plain data, imported by anyone."""
