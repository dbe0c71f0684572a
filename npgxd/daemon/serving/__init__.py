"""npgxd.sock: where the daemon listens, who may connect, whose message is next, what each does, and what those who wait are told."""
