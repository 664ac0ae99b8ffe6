# docker build -t structsparse . && docker run --rm -v "$PWD/runs:/structsparse/runs" structsparse
FROM python:3.11-slim
RUN apt-get update && apt-get install -y --no-install-recommends make && rm -rf /var/lib/apt/lists/*
WORKDIR /structsparse
COPY . .
RUN python3 -m venv .venv && .venv/bin/python -m pip install --no-cache-dir -e . && touch .venv/installed
ENTRYPOINT ["make", "demo"]
