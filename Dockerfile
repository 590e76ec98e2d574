# The workers, the server and the tools of Ontologia in one image:
#
#   docker build -t ontologia .
#   docker run --rm ontologia --version
#
# Your modules go into /app: as a volume, or in an image of your own (FROM ontologia, COPY shop shop).
# compose.yaml has a worker and a server on PostgreSQL.
#
# The tag moves with each release of Python and Debian. To build the same again, pin it by digest in both
# stages: `docker buildx imagetools inspect python:3.13-slim` prints the digest; write
# FROM python:3.13-slim@sha256:… and renew it when the base image is fixed.
FROM python:3.13-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN pip wheel --no-cache-dir --wheel-dir /wheels '.[extensions,postgres,web]'

FROM python:3.13-slim
# From the wheels of above alone, so that what was built is what runs; it has no other version.
# hadolint ignore=DL3013
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --find-links /wheels 'ontologia[extensions,postgres,web]' \
    && useradd --uid 10001 --no-create-home ontologia \
    && install --directory --owner ontologia /app /data
# As a number: Kubernetes can then see that it is not root.
USER 10001
WORKDIR /app
VOLUME /data
ENV PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
# SIGTERM stops a worker or a server cleanly; nothing stands in between.
STOPSIGNAL SIGTERM
ENTRYPOINT ["ontologia"]
CMD ["--help"]
