# The gateway in a container. Its kernels are containers beside it, started through the engine's socket; see deploy/.
ARG BASE_IMAGE=python:3.13-slim-bookworm

FROM ${BASE_IMAGE} AS environment
RUN python3 -m venv /opt/gateway
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_PROGRESS_BAR=off
# What it stands on has a layer of its own: a change of the source alone does not fetch it again.
COPY pyproject.toml /tmp/pyproject.toml
RUN python3 -c "import tomllib; print(*tomllib.load(open('/tmp/pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" \
    >/tmp/requirements.txt && /opt/gateway/bin/python -m pip install -r /tmp/requirements.txt
COPY . /source
RUN /opt/gateway/bin/python -m pip install /source

FROM ${BASE_IMAGE}
COPY --from=environment /opt/gateway /opt/gateway
ENV PATH=/opt/gateway/bin:/usr/local/bin:/usr/bin:/bin
EXPOSE 8888
ENTRYPOINT ["cellgate"]
CMD ["serve"]
