# The gateway in a container. Its kernels are containers beside it, started through the engine's socket; see deploy/.
ARG BASE_IMAGE=python:3.13-slim-bookworm

FROM ${BASE_IMAGE} AS environment
# uv for the building; index and certificates are those that the base's pip is configured with.
COPY kernels/cellgate_kernels/inside/uv.txt /tmp/uv.txt
RUN python3 -m venv /opt/uv && /opt/uv/bin/python -m pip install --no-cache-dir --disable-pip-version-check --progress-bar off \
    --require-hashes -r /tmp/uv.txt
COPY kernels/cellgate_kernels/specs/uv_command.py deploy/requirements.lock /tmp/
ENV UV_NO_CACHE=1
# What it stands on has a layer of its own: a change of the source alone does not fetch it again.
RUN python3 -m venv --without-pip /opt/gateway && /opt/uv/bin/python /tmp/uv_command.py pip install \
    --python /opt/gateway/bin/python --compile-bytecode --require-hashes --no-build -r /tmp/requirements.lock
COPY . /source
RUN /opt/uv/bin/python /tmp/uv_command.py pip install --python /opt/gateway/bin/python --compile-bytecode \
    --no-deps --no-build-isolation /source

FROM ${BASE_IMAGE}
COPY --from=environment /opt/gateway /opt/gateway
ENV PATH=/opt/gateway/bin:/usr/local/bin:/usr/bin:/bin
EXPOSE 8888
ENTRYPOINT ["cellgate"]
CMD ["serve"]
