"""Functions of `quench remote` that run on the host (`pipeline.extras.ssh.Request`).

Below ~/.cache/quench/remote, which only its owner can read:
    incoming/HASH       a file that rsync is sending
    objects/HASH        a file that arrived and was hashed
    runs/RUN/code       links to objects: the package, as it is at home
    runs/RUN/project    params.yaml and links to train's inputs; train's outputs
    runs/RUN/out/HASH   files on their way home
    runs/RUN/sent       the objects that it was started from
    runs/RUN/alive      a lock that processes of the run hold
    runs/RUN/log, exit  train's output; its exit code
"""
