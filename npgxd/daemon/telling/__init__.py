"""What people and programs are told: status, explain, metrics, traces and log lines. Nothing here changes anything."""
