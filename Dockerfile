FROM python:3.13-slim-trixie

# tini reaps what drafters leave behind; git makes the worktrees they work in.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends git tini \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --home-dir /var/lib/draftgate --no-create-home draftgate \
    && install --directory --owner draftgate --group draftgate /var/lib/draftgate \
    && python3 -m venv /opt/draftgate

ENV PATH=/opt/draftgate/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    DRAFTGATE_STATE_DIR=/var/lib/draftgate

# Apart from the code, so that a change of the code does not install all of this again.
COPY requirements/runtime.txt /tmp/runtime.txt
RUN pip install --no-cache-dir --require-hashes --requirement /tmp/runtime.txt

# Editable: the service finds migrations/ beside app/.
WORKDIR /srv/draftgate
COPY LICENSE pyproject.toml ./
COPY app app
COPY migrations migrations
RUN pip install --no-cache-dir --no-deps --no-build-isolation --editable . \
    && python -m compileall -q app

USER draftgate
VOLUME /var/lib/draftgate
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=20s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8000/livez', timeout=2)"]

ENTRYPOINT ["tini", "--"]
CMD ["draftgate", "serve", "--host", "0.0.0.0", "--port", "8000"]
