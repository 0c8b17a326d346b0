"""How fast SDRS is, as ratios against what the same machine does raw, in the same run.

``make bench`` runs all, ``make bench ONLY="l1_save peers_1gib"`` some. docs/benchmarks.md tells about those against
peers; ``python -m benchmarks.plot`` and ``python -m benchmarks.tables`` show them. Machines are shared and noisy: each
figure is the median of rounds in which ours and the raw one take turns. Nothing here is a test.
"""
