"""The core: requests, devices, the waiting queue, the fleet with its ledger, length classes."""
