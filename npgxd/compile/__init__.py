"""Compiling: plans, worker processes, one op_compiler run each, and the proof of what came out of it.

Promise: a job always ends, by itself, by its deadline or by force, and when its last event is told none of its processes runs
any more; a kernel is accepted only by the package's own index and its own json; every key of a job gets a kernel or a reason.
The daemon's loop never waits for anything in here.
"""

from npgxd.compile.directory import JobDirectory, Pruned, prune_jobs
from npgxd.compile.job import (
    CompilerFacts,
    Event,
    JobFailed,
    JobItem,
    JobProgress,
    JobResult,
    JobSpec,
    JobStarted,
    KeyFailed,
    MadeKernel,
    MadePackage,
)
from npgxd.compile.leftovers import Leftovers, end_leftovers
from npgxd.compile.plan import Batch, PlanItem, plan
from npgxd.compile.pool import Pool
from npgxd.compile.probe import probe
from npgxd.compile.running import Job

__all__ = [
    "Batch",
    "CompilerFacts",
    "Event",
    "Job",
    "JobDirectory",
    "JobFailed",
    "JobItem",
    "JobProgress",
    "JobResult",
    "JobSpec",
    "JobStarted",
    "KeyFailed",
    "Leftovers",
    "MadeKernel",
    "MadePackage",
    "PlanItem",
    "Pool",
    "Pruned",
    "end_leftovers",
    "plan",
    "probe",
    "prune_jobs",
]
