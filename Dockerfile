# The project in one image: `docker run pointsman supervisor ...`, `docker run pointsman worker ...`.

FROM python:3.13.14-slim AS build
WORKDIR /src
RUN python -m venv /opt/pointsman
# Install the dependencies first. They change less often than the code, and their layer takes longest to build.
COPY pyproject.toml constraints.txt README.md LICENSE ./
# constraints.txt has the digests of all wheels: pip and uv refuse a wheel with a different digest.
RUN mkdir -p schemas/pointsman_schemas runtime/pointsman agents/pointsman_agents \
    && python -m venv /opt/build \
    && sed -n '/^uv==/,/[^\\]$/p' constraints.txt >/opt/build/uv.txt \
    && /opt/build/bin/pip install --no-cache-dir --only-binary :all: --require-hashes --requirement /opt/build/uv.txt \
    && /opt/build/bin/uv pip install --no-cache --python /opt/pointsman/bin/python --only-binary :all: \
        --constraint constraints.txt --build-constraint constraints.txt '.[a2a,credentials,dashboard,gateway,websocket]' \
    && /opt/pointsman/bin/pip uninstall --yes pointsman
COPY schemas schemas
COPY runtime runtime
COPY agents agents
RUN /opt/build/bin/uv pip install --no-cache --python /opt/pointsman/bin/python --no-deps --build-constraint constraints.txt . \
    && /opt/pointsman/bin/python -m compileall -q /opt/pointsman

FROM python:3.13.14-slim
COPY --from=build /opt/pointsman /opt/pointsman
ENV PATH=/opt/pointsman/bin:$PATH \
    PYTHONUNBUFFERED=1
# A volume mounted on /data inherits its owner.
RUN useradd --create-home --uid 10001 pointsman && install --directory --owner pointsman /data
USER 10001
WORKDIR /home/pointsman
ENTRYPOINT ["pointsman"]
CMD ["--help"]
