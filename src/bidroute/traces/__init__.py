"""Room: traces."""
