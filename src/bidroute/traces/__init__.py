"""Workloads: readers of public trace formats, and built-in generators."""

from bidroute.traces.base import ReadOptions, Row, TraceFormat
from bidroute.traces.formats import FORMATS, register_format
from bidroute.traces.load import load_trace
from bidroute.traces.synthetic import SYNTHETIC, build_workload
from bidroute.traces.workload import Workload

__all__ = [
    "FORMATS",
    "SYNTHETIC",
    "ReadOptions",
    "Row",
    "TraceFormat",
    "Workload",
    "build_workload",
    "load_trace",
    "register_format",
]
