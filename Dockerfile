# Three targets:
#   docker build --target serve -t distill:serve .       serves files of students over HTTP, on port 8080 (no torch)
#   docker build --target student -t distill:student .   slim, CPU, trains, runs and serves students (no transformers)
#   docker build --target gpu -t distill:gpu .           both stages on NVIDIA GPUs
# Work in a mounted folder: docker run --rm -v "$PWD:/work" distill:student train-student --task mnli
# Each runs as user 1000, also with a read-only root (--read-only --tmpfs /tmp). `make images` builds and tries them.
#
# BASE needs Python with venv. INDEX is where packages come from, TORCH_INDEX and GPU_INDEX are where torch does.
ARG BASE=python:3.12-slim-bookworm

# Everything is compiled and installed in stages of their own, so that the images need neither a compiler nor pip.
FROM $BASE AS build
ARG INDEX=https://pypi.org/simple
ENV PIP_INDEX_URL=$INDEX PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN apt-get update && apt-get install -y --no-install-recommends g++
RUN python3 -m venv /opt/pip && python3 -m venv --without-pip /opt/distill
ENV INSTALL="/opt/pip/bin/pip --python /opt/distill/bin/python3 install --no-compile -c constraints.txt"
WORKDIR /source
COPY pyproject.toml setup.py constraints.txt README.md LICENSE ./
COPY distill distill
COPY pipeline pipeline
COPY teacher teacher
COPY student student
COPY data_manifests data_manifests
RUN /opt/pip/bin/pip wheel --no-deps --wheel-dir /wheels .

# Serving a file needs neither torch nor Arrow, DuckDB and tokenizers. tests/images.sh tries the list.
FROM build AS serve-files
RUN $INSTALL --no-deps /wheels/*.whl && $INSTALL \
    filelock httptools numpy pydantic pyyaml rich safetensors starlette typer uvicorn uvloop
RUN find /opt/distill -depth \( -type d -name tests -o -name '*.pyi' \) -exec rm -r {} + && \
    strip --strip-unneeded /opt/distill/lib/python3*/site-packages/uvloop/*.so

FROM build AS student-files
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN $INSTALL --extra-index-url $TORCH_INDEX "$(echo /wheels/*.whl)[s3,serve]"
# What only tests, compilers of extensions, debuggers and other services of AWS need.
RUN cd /opt/distill/lib/python3*/site-packages && \
    rm -r torch/include torch/share torch/test torch/bin/*test* torch/bin/protoc* torch/lib/*_test.so pyarrow/include pyarrow/*flight* && \
    find botocore/data -mindepth 1 -maxdepth 1 -type d ! -name s3 ! -name 'sso*' ! -name sts ! -name signin -exec rm -r {} + && \
    find . -depth \( -type d -name tests -o -name '*.pyi' \) -exec rm -r {} + && \
    strip --strip-unneeded torch/lib/libtorch_*.so pyarrow/*.so* aiohttp/*.so uvloop/*.so tokenizers/*.so hf_xet/*.so

FROM build AS gpu-files
ARG GPU_INDEX=https://pypi.org/simple
RUN $INSTALL --extra-index-url $GPU_INDEX "$(echo /wheels/*.whl)[teacher,augment,ray,s3]"

FROM $BASE AS base
ENV PATH=/opt/distill/bin:$PATH PYTHONUNBUFFERED=1
RUN useradd --create-home --uid 1000 distill && mkdir /work && chown distill /work
WORKDIR /work
ENTRYPOINT ["distill"]
CMD ["--help"]

FROM base AS student
COPY --from=student-files /opt/distill /opt/distill
# Only modules that are used get bytecode. A read-only root could not store it later.
RUN distill --version && python3 -c "import student.fit, student.predict.run_predictor, distill.apps.serve.server"
USER 1000

FROM base AS gpu
COPY --from=gpu-files /opt/distill /opt/distill
RUN distill --version && python3 -c "import student.fit, teacher.dump.teacher_dump, transformers.models.bert.modeling_bert"
USER 1000
ENV HF_HOME=/work/.cache/huggingface

FROM base AS serve-root
COPY --from=serve-files /opt/distill /opt/distill
RUN distill serve --help && \
    python3 -c "import distill.apps.serve.server, student.predict.engine_predictor, uvloop, uvicorn.protocols.http.httptools_impl"
# Nothing is installed in a running server. The files disappear from the image because the next stage copies the rest.
RUN rm -rf /usr/lib/apt /usr/lib/*/libapt-* /usr/bin/apt* /usr/lib/*/gconv /usr/bin/perl* /usr/lib/*/perl* /usr/share/perl* \
    /usr/share/python-wheels /usr/lib/python3*/ensurepip /usr/local/lib/python3*/ensurepip /usr/local/lib/python3*/site-packages/pip* \
    /var/lib/apt /var/cache/debconf /usr/share/doc/*/changelog* && find / -xdev -name 'idlelib' -prune -exec rm -r {} +

FROM scratch AS serve
COPY --from=serve-root / /
ENV PATH=/opt/distill/bin:/usr/local/bin:/usr/bin:/bin LANG=C.UTF-8 PYTHONUNBUFFERED=1
WORKDIR /work
USER 1000
EXPOSE 8080
HEALTHCHECK --interval=10s --timeout=3s --start-period=30s \
    CMD ["python3", "-c", "from urllib.request import urlopen; urlopen('http://127.0.0.1:8080/health', timeout=2)"]
ENTRYPOINT ["distill", "serve", "--host", "0.0.0.0"]
CMD ["--help"]
