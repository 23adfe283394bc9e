"""The phases of stage curate. Each reads the results of earlier ones from disk, so they are calls in one
process or jobs on several machines.

plan → clean (by shard) → sample → sketch (by shard) → join (by range of keys) → cluster → write (by shard) →
publish. `plan`, `sample` and `cluster` see all rows. A shard is a run of neighboring lines. There are as many
ranges of keys as shards.
"""
