"""What ``npgxctl doctor`` looks at: one module a subject, each a list of checks that read this node and change nothing.

Promise: every finding that is not good says what to do about it; a check that cannot look says so, and the others go on.
"""

from npgxd.cli.findings._finding import Finding, Grade, examined

__all__ = ["Finding", "Grade", "examined"]
