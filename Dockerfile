# The gateway in a container. Its kernels are containers beside it, started through the engine's socket; see deploy/.
ARG BASE_IMAGE=python:3.13-slim-bookworm

FROM ${BASE_IMAGE} AS environment
RUN python3 -m venv /opt/gateway
COPY . /source
RUN /opt/gateway/bin/python -m pip install --no-cache-dir --disable-pip-version-check --progress-bar off /source

FROM ${BASE_IMAGE}
COPY --from=environment /opt/gateway /opt/gateway
ENV PATH=/opt/gateway/bin:/usr/local/bin:/usr/bin:/bin
EXPOSE 8888
ENTRYPOINT ["cellgate"]
CMD ["serve"]
