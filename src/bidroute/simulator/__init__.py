"""Room: simulator."""
