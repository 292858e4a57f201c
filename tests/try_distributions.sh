#!/bin/sh
# Installs the wheel and the source distribution in DIST, each into its own environment, and fits a model outside the
# source folder. Called by `make dist`.
set -eu
dist=$(cd "$1" && pwd)
for file in "$dist"/*.whl "$dist"/*.tar.gz; do
    folder=$(mktemp -d)
    "${PYTHON:-python3}" -m venv "$folder/venv"
    "$folder/venv/bin/python" -m pip install --quiet "$file[cli]"
    (cd "$folder" && ./venv/bin/fedvar-fast simulate data --clients 2 --dim 4 --rows 60 --rank 1 \
        && ./venv/bin/fedvar-fast fit data --order 1 --rank 1 --out model.fedvar \
        && ./venv/bin/fedvar-fast forecast model.fedvar --steps 1) > "$folder/log" 2>&1 \
        || { cat "$folder/log"; exit 1; }
    echo "works: $(basename "$file")"
    rm -rf "$folder"
done
