"""Hosts that live inside somebody else's program. Each needs its extra, and is imported only where it is asked for."""
