"""A picture of the Grafana dashboard: ``python -m tools.dashboard_picture OUT.png``, for whoever changes tools/dashboards/npgxd.json.

A daemon on a simulated CANN with some life on it is scraped by a real Prometheus, and the dashboard's panels are drawn from that by
Grafana's own components in a real browser.  What Grafana's server adds (its variables, its refresh) is stood in for by page.jsx.
"""
