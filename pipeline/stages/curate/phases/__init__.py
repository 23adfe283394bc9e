"""The phases of stage curate: each reads what earlier ones left on disk, so they are calls in one process or
jobs on several machines.

plan → clean (by shard) → sample → sketch (by shard) → join (by range of keys) → cluster → write (by shard) →
publish. `plan`, `sample` and `cluster` see all rows; a shard is a run of neighboring lines, and there are as
many ranges of keys as shards.
"""
