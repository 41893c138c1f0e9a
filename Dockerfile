# Three targets:
#   docker build --target student -t distill:student .   slim, CPU, trains and runs students (no transformers)
#   docker build --target serve -t distill:serve .     the same behind HTTP, on port 8080
#   docker build --target gpu -t distill:gpu .           both stages on NVIDIA GPUs
# Work in a mounted folder: docker run --rm -v "$PWD:/work" distill:student train-student --task mnli

# The compiled kernels are built here, so that the images need no compiler.
FROM python:3.12-slim-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++
WORKDIR /opt/distill
COPY pyproject.toml setup.py README.md LICENSE ./
COPY distill distill
COPY pipeline pipeline
COPY teacher teacher
COPY student student
COPY data_manifests data_manifests
RUN pip wheel --no-deps --wheel-dir /wheels .

FROM python:3.12-slim-bookworm AS base
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1
RUN useradd --create-home --uid 1000 distill && mkdir /work && chown distill /work
WORKDIR /opt/distill
COPY constraints.txt ./
COPY --from=build /wheels /wheels

FROM base AS student
RUN pip install --extra-index-url https://download.pytorch.org/whl/cpu -c constraints.txt "$(echo /wheels/*.whl)[s3]"
USER 1000
WORKDIR /work
ENTRYPOINT ["distill"]
CMD ["--help"]

FROM base AS serve
RUN pip install --extra-index-url https://download.pytorch.org/whl/cpu -c constraints.txt "$(echo /wheels/*.whl)[serve]"
USER 1000
WORKDIR /work
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s \
    CMD ["python", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8080/health', timeout=2)"]
ENTRYPOINT ["distill", "serve", "--host", "0.0.0.0"]
CMD ["--help"]

FROM base AS gpu
RUN pip install -c constraints.txt "$(echo /wheels/*.whl)[teacher,augment,ray,s3]"
USER 1000
WORKDIR /work
ENV HF_HOME=/work/.cache/huggingface
ENTRYPOINT ["distill"]
CMD ["--help"]
