# scannet-prep, without data, account or accepted terms. See docs/containers.md.
#
#     docker build -t scannet-prep .
#     docker run --rm --user "$(id -u):$(id -g)" -v "$PWD/data:/data" scannet-prep process /data/ScanNet -o /data/processed

# Another Python, or another registry: --build-arg PYTHON=registry.example.org/python:3.12-slim
ARG PYTHON=python:3.13-slim

FROM ${PYTHON} AS build
# Extras of the package: --build-arg EXTRAS=parquet
ARG EXTRAS=""
WORKDIR /src
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY scannet_prep scannet_prep
RUN python -m venv --without-pip /opt/scannet-prep \
    && python -m pip --python /opt/scannet-prep/bin/python install --no-cache-dir ".${EXTRAS:+[$EXTRAS]}"

FROM ${PYTHON}
COPY --from=build /opt/scannet-prep /opt/scannet-prep
# HOME: the user id of the caller has no home folder in the image.
# PYTHONUNBUFFERED: lines of progress appear at once.
ENV PATH=/opt/scannet-prep/bin:$PATH \
    HOME=/tmp \
    PYTHONUNBUFFERED=1
# A number, so that Kubernetes can check that it is not root. To run as yourself:
# --user "$(id -u):$(id -g)"
USER 1000:1000
# From here, the default folders data/ScanNet and data/processed are in the volume /data.
WORKDIR /
ENTRYPOINT ["scannet-prep"]
CMD ["--help"]
