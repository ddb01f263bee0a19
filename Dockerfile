# scannet-prep, without data, without an account, and without accepted terms. docs/containers.md says how to use it.
#
#     docker build -t scannet-prep .
#     docker run --rm --user "$(id -u):$(id -g)" -v "$PWD/data:/data" scannet-prep process /data/ScanNet -o /data/processed

# Another Python, or another registry: --build-arg PYTHON=registry.example.org/python:3.12-slim
ARG PYTHON=python:3.13-slim

FROM ${PYTHON} AS build
# Extras, such as `fast` (numba: process is faster, the image twice as large): --build-arg EXTRAS=fast
ARG EXTRAS=""
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY scannet_prep scannet_prep
RUN python -m venv --without-pip /opt/scannet-prep \
    && python -m pip --python /opt/scannet-prep/bin/python install --no-cache-dir ".${EXTRAS:+[$EXTRAS]}"

FROM ${PYTHON}
COPY --from=build /opt/scannet-prep /opt/scannet-prep
# HOME: callers' user ids are unknown here, and have none. PYTHONUNBUFFERED: lines of progress show at once.
ENV PATH=/opt/scannet-prep/bin:$PATH \
    HOME=/tmp \
    NUMBA_CACHE_DIR=/tmp/numba \
    PYTHONUNBUFFERED=1 \
    SCANNET_PREP_VOLUME=/data
# A number, so that Kubernetes can see that it is not root. Where it runs as somebody else: --user "$(id -u):$(id -g)"
USER 1000:1000
# The default folders of the commands, data/ScanNet and data/processed, are then in the volume /data.
WORKDIR /
ENTRYPOINT ["scannet-prep"]
CMD ["--help"]
