#!/usr/bin/env bash
# MRPC from the teacher to an ONNX file: fine-tune BERT, ask it once, look at what it said, train two students, compare them.
# Each step can be stopped and repeated. Model and data come from the hub; DISTILL_DATA names a folder with your own copy.
#   pip install -c constraints.txt '.[teacher,augment,onnx]' && examples/mrpc.sh
set -euo pipefail

distill finetune-teacher --task mrpc --model-name-or-path bert-base-uncased --output-dir teachers/mrpc
distill teacher-dump --task mrpc --model-name-or-path teachers/mrpc
distill sql "from calibration(mrpc)"
distill train-student --task mrpc --embedding cbow --output-dir runs/mrpc-cbow
distill train-student --task mrpc --embedding hybrid --output-dir runs/mrpc-hybrid
distill evaluate runs/mrpc-cbow
distill evaluate runs/mrpc-hybrid
distill export runs/mrpc-hybrid --onnx mrpc.onnx --tables int8
