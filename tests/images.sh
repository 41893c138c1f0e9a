#!/bin/sh
# Builds every target of the Dockerfile and tries it as a cluster runs it: not as root, without capabilities, and with a
# root file system that cannot be written. Prints the size of each image and the time until it answers.
#   tests/images.sh [FLAG OF BUILD ...]
# Flags are for instance --build-arg BASE=IMAGE, INDEX=URL, TORCH_INDEX=URL and GPU_INDEX=URL. DOCKER is the command, for
# instance podman. RUN_FLAGS are further flags of its `run`. TARGETS are what is built and tried.
set -eu
docker=${DOCKER:-docker}
targets=${TARGETS:-student serve gpu}
fixtures=$PWD/tests/fixtures/formats/v1
work=$(mktemp -d)
chmod 777 "$work"
server=distill-images-$$
trap '$docker rm --force $server >/dev/null 2>&1 || true; rm -rf "$work" 2>/dev/null' EXIT

fail() { echo "$*" >&2; exit 1; }
milliseconds() { echo $(($(date +%s%N) / 1000000)); }
has() { case " $targets " in *" $1 "*) ;; *) return 1 ;; esac; }
run() {
  $docker run --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges --network host ${RUN_FLAGS:-} \
    -v "$work:/work" -v "$fixtures:/fixtures:ro" "$@"
}
# A free port, since the network is that of this machine.
port=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
answer() { python3 -c '
import json, sys, urllib.request
body = json.dumps({"inputs": sys.argv[2]}).encode()
print(json.dumps(json.load(urllib.request.urlopen(sys.argv[1], body))[0]))' "http://127.0.0.1:$port/predict" "$@"; }

for target in $targets; do
  $docker build "$@" --target "$target" -t "distill:$target" .
done
for target in $targets; do
  start=$(milliseconds)
  run --rm "distill:$target" --help >"$work/help"
  took=$(($(milliseconds) - start))
  grep -q Usage "$work/help" || fail "$target: --help prints no usage"
  run --rm --entrypoint sh "distill:$target" -c '[ $(id -u) = 1000 ] && ! command -v c++ g++ cc' || fail "$target: root, or a compiler"
  size=$($docker image inspect --format '{{.Size}}' "distill:$target")
  echo "$target: $((size / 1000000)) MB, --help takes $took ms" | tee -a "$work/sizes"
  case $target in serve) most=200 ;; student) most=1024 ;; *) most=100000 ;; esac
  [ $((size / 1000000)) -lt $most ] || echo "warning: $target: more than $most MB" | tee -a "$work/sizes"
done

if has student; then
  run --rm distill:student train-student --set extended --store /fixtures --output-dir /work/run --num-train-epochs 1
  run --rm distill:student export /fixtures/run-pairs --file /work/pairs.distill
  run --rm distill:student predict /work/pairs.distill "the food was awful ." --json >"$work/expected"
fi

# serves IMAGE ARGUMENT...: starts a server, compares its answer with the library's, and ends it.
serves() {
  start=$(milliseconds)
  run --detach --name $server "$@" --port "$port" >/dev/null
  until python3 -c "import urllib.request as r; r.urlopen('http://127.0.0.1:$port/health')" 2>/dev/null; do
    [ $(($(milliseconds) - start)) -lt 60000 ] || { $docker logs $server; fail "$1: does not listen after 60 s"; }
    sleep 0.05
  done
  up=$(($(milliseconds) - start))
  answer "the food was awful ." >"$work/answer"
  check=$(sed -n 's/^ *CMD \["python3", "-c", "\(.*\)"\]$/\1/p' Dockerfile | sed "s/:8080/:$port/")
  $docker exec $server python3 -c "$check" || fail "$1: the health check fails"
  start=$(milliseconds)
  $docker kill --signal TERM $server >/dev/null
  code=$($docker wait $server)
  down=$(($(milliseconds) - start))
  [ "$code" = 0 ] || fail "$1: SIGTERM ended it with exit code $code"
  [ $down -lt 10000 ] || fail "$1: SIGTERM ended it after $down ms"
  $docker rm $server >/dev/null
  python3 - "$work/expected" "$work/answer" <<'EOF' || fail "$1: its answer is not the library's"
import json, sys
expected, answer = (json.load(open(path)) for path in sys.argv[1:])
expected = expected[0] if isinstance(expected, list) else expected
assert answer["label"] == expected["label"], (answer, expected)
assert abs(answer["score"] - expected["probabilities"][answer["label"]]) < 1e-4, (answer, expected)
EOF
  echo "$1: /health after $up ms, SIGTERM ends it after $down ms" | tee -a "$work/sizes"
}

if has serve && has student; then
  serves distill:serve /work/pairs.distill
  serves distill:student serve /fixtures/run-pairs
  code=0
  run --rm distill:serve /fixtures/run-pairs || code=$?
  [ $code = 2 ] || fail "serve: the folder of a run ended with exit code $code"
fi
echo
cat "$work/sizes"
