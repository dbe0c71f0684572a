"""npgxd-admin.sock: what an administrator's command does, imports, and the way to a stop."""
