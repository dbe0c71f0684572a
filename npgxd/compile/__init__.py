"""Compiling: plans, worker processes, one op_compiler run each, and the proof of what came out of it.

Promise: a job always ends, by itself, by its deadline or by force, and when its last event is told none of its processes runs
any more; a kernel is accepted only by the package's own index and its own json; every key of a job gets a kernel or a reason.
The daemon's loop never waits for anything in here.
"""

from npgxd.compile.batches import Batch, PlanItem, apart
from npgxd.compile.costs import Costs, Estimate, KernelSeen, RunSeen, size_of
from npgxd.compile.directory import JobDirectory, Pruned, prune_jobs
from npgxd.compile.job import (
    CompilerFacts,
    Event,
    JobEnding,
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
from npgxd.compile.machine import Grant, Machine
from npgxd.compile.narrowing import Seen, Split, narrow
from npgxd.compile.outcome import outcome_of
from npgxd.compile.plan import Planned, Queue, Slots, Terms, next_batch
from npgxd.compile.pool import Pool
from npgxd.compile.probe import probe
from npgxd.compile.running import Job

__all__ = [
    "Batch",
    "CompilerFacts",
    "Costs",
    "Estimate",
    "Event",
    "Grant",
    "Job",
    "JobDirectory",
    "JobEnding",
    "JobFailed",
    "JobItem",
    "JobProgress",
    "JobResult",
    "JobSpec",
    "JobStarted",
    "KernelSeen",
    "KeyFailed",
    "Leftovers",
    "Machine",
    "MadeKernel",
    "MadePackage",
    "PlanItem",
    "Planned",
    "Pool",
    "Pruned",
    "Queue",
    "RunSeen",
    "Seen",
    "Slots",
    "Split",
    "Terms",
    "apart",
    "end_leftovers",
    "narrow",
    "next_batch",
    "outcome_of",
    "probe",
    "prune_jobs",
    "size_of",
]
