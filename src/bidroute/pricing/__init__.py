"""Room: pricing."""
