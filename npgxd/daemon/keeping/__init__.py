"""What the daemon works from: the opened state directory with all that lies in it, and the toolchain that gives records their keys."""
