# The demonstration, as `make demo` runs it:
#   docker build --tag ergo-demo .
#   docker run --rm --interactive --tty ergo-demo
FROM python:3.13-slim

COPY . /source
RUN pip install --no-cache-dir /source

# Only the examples: the package is the installed package.
WORKDIR /demo
COPY examples examples

USER nobody
CMD ["python", "-m", "examples.demo"]
