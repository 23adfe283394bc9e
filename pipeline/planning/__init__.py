"""What a training run needs, by config.json alone: memory by part, disk, time. Nothing here imports torch but
`built`, for architectures whose shapes the others don't know.
"""
