"""The scheduler: jobs that come back by themselves from the newest replicated checkpoint.

It stands on the SDK and the control API, never underneath: whatever it knows is in records that the control API keeps
(``sdrs.records``), and it has no private door to the cluster (P22).
"""
