"""bidroute's policies inside the Vidur simulator: `python -m bidroute.integrations.vidur` (docs/vidur.md).

This module imports nothing of Vidur's; the others do, and need the extra `bidroute[vidur]`.

    installed     is the Vidur that these modules were written against there?
    options       what is added to Vidur's own options
    policies      every policy of the registry under a name that Vidur knows
    requests      a request of Vidur's that remembers what happened to it
    latency       execution times from our latency models; replicas of unlike speed
    replicas      replicas of unlike size, watched
    ledger        what happens on replicas, told to the controller
    scheduler     a policy as a global scheduler
    simulation    Vidur's simulator with all this in it
    results       one run, by column
"""
