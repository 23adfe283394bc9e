"""The phases of stage curate: functions, each of which leaves what is large in a folder for later ones.

plan → clean → sample → sketch → join → cluster → write → publish
"""
