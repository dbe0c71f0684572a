"""What a rank uses: find the daemon, submit records by value, follow their round, lease the view.

Promise: a rank never fails, and never waits past its deadline, because of the daemon: whatever that does or does not do, the
caller gets an ``Outcome`` that says what this process has and why.  An exit is never held up, a forked child never touches its
parent's connection, no signal handler is installed, and nothing is imported but pyzmq and msgpack.
"""

from npgxd.client.artifacts import Told
from npgxd.client.client import Client, current
from npgxd.client.dump import read_dump
from npgxd.client.lookup import Found
from npgxd.client.outcome import Outcome, Progress
from npgxd.client.rank import rank_info
from npgxd.client.session import Patience

__all__ = ["Client", "Found", "Outcome", "Patience", "Progress", "Told", "current", "rank_info", "read_dump"]
