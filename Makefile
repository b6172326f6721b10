# Everything runs in .venv with the exact versions of constraints.txt.
PYTHON ?= python3
MODEL ?= Qwen/Qwen2.5-Coder-1.5B-Instruct
BIN := .venv/bin

.PHONY: demo lint types browser screenshots test test-all test-servers interop-cookbook interop-skyrl check experiment bench clean

demo: .venv/ready
	$(BIN)/peergrad train --preset demo

lint: .venv/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

# The tests of the viewer open a real browser. Without one, and without the right to install it, they are skipped and say so.
browser:
	@[ -n "$$CHROMIUM" ] || command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || \
		{ [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && export DEBIAN_FRONTEND=noninteractive && \
		timeout 120 apt-get -qq update && timeout 300 apt-get -qq install -y --no-install-recommends chromium >/dev/null; } || \
		echo 'no Chromium, and no right to install it: the tests of the viewer will be skipped'

# Pictures of the viewer, docs/screenshots.
screenshots: .venv/ready browser
	$(BIN)/python -m tests.web.screenshots docs/screenshots

# One process per core, then what must have the machine to itself. Waiting threads must not take a core from another process,
# and hundreds of processes should not compile the same modules.
test: export PYTHONDONTWRITEBYTECODE =
test: lint browser
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n logical --dist loadfile --no-loadscope-reorder -m 'not alone and not slow'
	$(BIN)/python -m pytest -m 'alone and not slow'

# Also what takes longer: runs of newer parts that are killed and resumed.
test-all: test
	$(BIN)/python -m pytest -n logical -m "slow and not alone"
	$(BIN)/python -m pytest -m "slow and alone"

# Against a real server, which it installs into .venv-servers; not part of the tests.
test-servers: .venv/ready
	$(BIN)/python -u -m tests.servers.transformers_serve

# tinker-cookbook's own loops against a real `peergrad serve`; it is installed into .venv-cookbook. Not part of the tests.
interop-cookbook: .venv/ready
	$(BIN)/python -u -m interop.cookbook

# On a distributed engine, SkyRL, in an environment of its own: its client is older than ours. Not part of the tests.
interop-skyrl: .venv-skyrl/ready
	.venv-skyrl/bin/python -u interop/train_on_skyrl.py

types: .venv/ready
	$(BIN)/pyright --pythonpath $(BIN)/python

check: lint types test

# Does peer voting teach? Needs a GPU; resumes.
experiment: .venv/ready
	$(BIN)/python experiments/votes_teach/run.py --model $(MODEL) --out runs/votes_teach
	$(BIN)/python experiments/votes_teach/table.py runs/votes_teach --figure runs/votes_teach/figure.svg

bench: .venv/ready
	$(BIN)/python benchmarks/start_up.py
	$(BIN)/python benchmarks/read_hostile.py
	$(BIN)/python benchmarks/play_and_credit.py
	$(BIN)/python benchmarks/growing_dialogue.py
	$(BIN)/python benchmarks/coverage.py
	$(BIN)/python benchmarks/rescore.py
	$(BIN)/python benchmarks/viewer.py --debates 1000 --megabytes 300
	$(BIN)/python benchmarks/local_cpu.py
	$(BIN)/python benchmarks/cpu_products.py
	$(BIN)/python benchmarks/demo_step.py
	$(BIN)/python benchmarks/api_concurrency.py
	$(BIN)/python benchmarks/tinker_latency.py

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,local,math,openai,tinker,web]'
	touch .venv/ready

# Exactly this torch: other specifiers bring the CUDA libraries along. peergrad comes without its own wishes.
.venv-skyrl/ready: pyproject.toml
	$(PYTHON) -m venv .venv-skyrl
	.venv-skyrl/bin/python -m pip install --quiet --disable-pip-version-check \
		'skyrl[tinker,jax]==0.3.0' torch==2.13.0 'tinker<=0.24.1' numpy rich tyro jinja2 httpx
	.venv-skyrl/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	touch .venv-skyrl/ready

clean:
	rm -rf .venv .venv-servers .venv-cookbook .venv-skyrl .pytest_cache .ruff_cache .hypothesis .import_linter_cache
