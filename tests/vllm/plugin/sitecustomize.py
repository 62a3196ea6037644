"""On the path of a worker: its engine shares one process, and few cores, with its server, which must get its turns."""

import sys

sys.setswitchinterval(0.0002)
