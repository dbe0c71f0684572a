"""Benches: figures of the daemon and its client, each measured on a private node with a *simulated* CANN, as minimum and median.

A figure on a shared machine says little by itself; where there is a peer or an ideal, the bench gives the ratio to it in the same run.
"""
