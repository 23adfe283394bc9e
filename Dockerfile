# Quench in a container, set up by the same command as anywhere else. docs/container.md shows its use.
#
#     docker build --tag quench .
#     docker build --tag quench --build-arg BASE=nvidia/cuda:13.0.1-devel-ubuntu24.04 --build-arg TORCH=cu130 --build-arg LLAMA=cuda .
ARG BASE=debian:bookworm-slim
FROM ${BASE}

# the programs that README asks for; the distribution gives their versions
# hadolint ignore=DL3008
RUN apt-get update \
    && DEBIAN_FRONTEND=noninteractive apt-get install --yes --no-install-recommends \
        ca-certificates g++ git libc6-dev make procps python3 python3-venv \
    && rm -rf /var/lib/apt/lists/*

ARG TORCH=cpu
ARG LLAMA=cpu
WORKDIR /quench
COPY . .
# the caches of pip and of Quench would only make the image larger
RUN PIP_NO_CACHE_DIR=1 UV_NO_CACHE=1 QUENCH_CACHE=off make setup TORCH="$TORCH" LLAMA="$LLAMA" \
    && ln -s "$(find /quench/.tools -name llama-server -type f)" /usr/local/bin/llama-server

# The project may belong to any user, who needs a home, a name and a right of Git to read it.
ENV PATH=/quench/.venv/bin:$PATH HOME=/home/quench USER=quench
RUN mkdir --mode=1777 /home/quench /home/quench/.cache && git config --system --add safe.directory '*'

WORKDIR /project
ENTRYPOINT ["quench"]
CMD ["--help"]
