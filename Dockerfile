# The `holdfast` command and nothing else. Put your app beside it: mount it at /srv/app, or build on this image.
FROM python:3.13-slim AS build
WORKDIR /build
RUN python -m venv /opt/holdfast && python -m venv /opt/tools
COPY requirements/run.txt requirements/build.txt requirements/
# Hashes for everything that comes from outside, also for what only builds the wheel.
RUN /opt/holdfast/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r requirements/run.txt
RUN /opt/tools/bin/pip install --no-cache-dir --disable-pip-version-check --require-hashes -r requirements/build.txt
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY src src
RUN /opt/tools/bin/pip wheel --no-cache-dir --no-index --no-deps --no-build-isolation --wheel-dir dist . \
 && /opt/holdfast/bin/pip install --no-cache-dir --no-index --no-deps dist/*.whl

FROM python:3.13-slim
RUN useradd --uid 10001 --create-home --home-dir /var/lib/holdfast --shell /usr/sbin/nologin holdfast
COPY --from=build /opt/holdfast /opt/holdfast
ENV PATH=/opt/holdfast/bin:$PATH PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1
WORKDIR /srv/app
USER 10001:10001
EXPOSE 8700
# A worker hands back what it cannot finish; `docker stop --time` must be longer than its --grace.
STOPSIGNAL SIGTERM
ENTRYPOINT ["holdfast"]
CMD ["--help"]
