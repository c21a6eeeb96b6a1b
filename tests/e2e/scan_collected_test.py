"""What people keep and paste, of every kind that `scan` reads: names, versions and peculiarities of public inputs, written anew."""

from __future__ import annotations

from pathlib import Path

import pytest
from scan_test import LIGER, document, scan

PACKS = f"{LIGER},trainer_grad_accumulation,zero2_grad_accumulation"
SHORT = {"deepspeed": "ds", "liger-kernel": "lk", "transformers": "tf"}
Row = tuple[str, str, int]  # the text; "tf 4.57.1 hit, ds 0.18.2 conda"; how many of its parts are unread
INPUTS: dict[str, list[Row]] = {
    "pip list": [
        ("root@x:/w# pip list\nPackage Version Editable project location\n------- ------- ----------\n"
         "deepspeed    0.18.2  /srv/deepspeed\ntransformers 4.47.1\n", "ds 0.18.2 folder, tf 4.47.1 hit", 0),
        ("**Pip list** \n----------- -------\naiohttp     3.14.3\ntransformers 4.57.1\nvllm        0.15.0\n", "tf 4.57.1 hit", 0),
        ("Package Version\n----------- -------\ndeepspeed 0.18.3\n\ntransformers 4.57.1\n", "ds 0.18.3 not_hit, tf 4.57.1 hit", 0),
        ("env A:\nPackage Version\n----------- -------\nliger-kernel 0.8.5\n\nenv B:\nPackage Version\n----------- -------\n"
         "liger-kernel 0.8.0\n", "lk 0.8.5 not_hit, lk 0.8.0 hit", 0),
        ("output of pip list:\nPackage Version Location\n----------- -------\ntransformers 4.57.1 /opt/site-packages\n"
         "WARNING: pip is old\n", "tf 4.57.1 hit", 1),
        ("> Package Version\n> ----------- -------\n> deepspeed 0.18.2\n\n[notice] A new release of pip is available: 24.0 -> 25.1\n",
         "ds 0.18.2 hit", 0),
        ("- Transformers version: 4.46.3\n\nPackage Version\n----------- -------\ndeepspeed 0.16.1\n",
         "tf 4.46.3 hit, ds 0.16.1 not_hit", 0),
        ("liger_kernel_nightly                     0.5.4.dev20250227064037\n", "lk unknown", 0),
    ],
    "pip freeze": [
        ("certifi @ file:///croot/certifi_1671/work/certifi\ndeepspeed==0.14.1\ntransformers==4.47.0\n",
         "ds 0.14.1 not_hit, tf 4.47.0 hit", 0),
        ("$ pip freeze\naccelerate==0.34.2\ntransformers===4.57.1\n", "tf 4.57.1 hit", 1),
        ("-e git+https://example.org/DeepSpeed.git@0123456789abcdef0123456789abcdef01234567#egg=deepspeed\ntorch==2.5.1+cu124\n",
         "ds git", 0),
        ("absl-py==1.4.0\ndeepspeed==0.18.2\ntransformers @ git+https://example.org/transformers@main\n", "ds 0.18.2 hit, tf git", 0),
    ],
    "conda": [
        ("(llm) D:\\w>conda list\n# packages in environment at C:\\envs\\llm:\n#\n"
         "# Name                    Version                   Build  Channel\n"
         "bzip2    1.0.8   h2bbff1b_6    https://mirrors.example.org/pkgs/my-own-main\ntransformers  4.57.1  pypi_0  pypi\n",
         "tf 4.57.1 hit", 0),
        ("- OS: Linux\n - Transformers version: 4.46.3\n```\n# Name  Version  Build  Channel\n_libgcc_mutex 0.1 main  \n"
         "blas  1.0  mkl  \ndeepspeed  0.16.1  pypi_0  pypi\n```\nThanks!\n", "tf 4.46.3 hit, ds 0.16.1 not_hit", 0),
        ("flash-attn  2.5.7  pypi_0    pypi      \ntransformers  4.48.3  pyhd8ed1ab_0  conda-forge  \n", "tf 4.48.3 conda", 0),
        ("# This file may be used to create an environment using:\n# $ conda create --name <env> --file <this file>\n\n"
         "deepspeed=0.14.5\ntransformers=4.31.0\n", "ds 0.14.5 conda, tf 4.31.0 conda", 0),
        ("# $ conda create --name <env> --file <this file>\n# platform: linux-64\n_libgcc_mutex=0.1=main\ntransformers=4.57.1=pypi_0\n",
         "tf 4.57.1 hit", 0),
        ('List of packages in environment: "/opt/x"\n\n  Name  Version  Build  Channel\n───────────\n'
         "  _libgcc_mutex  0.1  conda_forge  conda-forge\n  deepspeed  0.18.2  pypi_0  pypi\n", "ds 0.18.2 hit", 0),
        ("@EXPLICIT\nhttps://conda.anaconda.org/conda-forge/linux-64/_libgcc_mutex-0.1-main.conda#d7\n"
         "https://conda.anaconda.org/conda-forge/noarch/transformers-4.57.1-pyhd8ed1ab_0.conda#aa\n", "tf 4.57.1 conda", 0),
        ("name: s\nchannels: [defaults]\ndependencies:\n  - _openmp_mutex=5.1=1_gnu\n  - pip=23.3=py310h06a4308_0\n  - pip:\n"
         "      - deepspeed==0.12.2\n      - transformers==4.44.2\nprefix: /x\n", "ds 0.12.2 not_hit, tf 4.44.2 hit", 0),
        ("name: d\ndependencies:\n- python=3.10\n- pip:\n  - deepspeed==0.16.4\n"
         "  - git+https://example.org/trl.git@0f88c179e30b3439467942a08c3190f624d5c423\n  - transformers==4.49.0\n",
         "ds 0.16.4 not_hit, tf 4.49.0 hit", 1),
        ("name: b\ndependencies:\n- transformers\n- conda-forge::deepspeed 0.18.2\n- pip\n- pip:\n", "tf conda, ds 0.18.2 conda", 0),
        ("version: 1\nmetadata: {channels: []}\npackage:\n- name: deepspeed\n  version: 0.12.2\n  manager: conda\n  platform: linux-64\n"
         "  category: main\n- {name: transformers, version: 4.36.0, manager: conda}\n", "ds 0.12.2 conda, tf 4.36.0 conda", 0),
    ],
    "report": [
        ("$ trl env\n[2025-02-24 10:22:41,365] [INFO] [real_accelerator.py:222:get_accelerator] Setting ds_accelerator to cuda\n\n"
         "- Python version: 3.12.2\n- TRL version: 0.16.0.dev0+5975879\n- Transformers version: 4.47.0\n- Accelerate config: not found\n"
         "- DeepSpeed version: 0.16.3\n- Liger-Kernel version: not installed\n", "tf 4.47.0 hit, ds 0.16.3 not_hit", 0),
        ("- Transformers version: 4.45.0.dev0\n- Accelerate config: \n"
         "  - deepspeed_config: {'gradient_accumulation_steps': 4, 'zero_stage': 2}\n- DeepSpeed version: 0.15.1\n"
         "- Liger-Kernel version: 0.3.0\n", "tf 4.45.0.dev0 unknown, ds 0.15.1 not_hit, lk 0.3.0 hit", 0),
        ("- `llamafactory` version: 0.9.2.dev0\n- PyTorch version: 2.5.1+cu124 (GPU)\n- Transformers version: 4.46.1\n"
         "- DeepSpeed version: 0.16.1\n\n[rank0]: Traceback (most recent call last):\n", "tf 4.46.1 hit, ds 0.16.1 not_hit", 0),
        ("<details>\n<summary>env</summary>\n\n- `transformers` version: 4.57.1\n- PyTorch version (GPU?): 2.6.0+cu124 (True)\n"
         "</details>\n", "tf 4.57.1 hit", 0),
        ("> - `transformers` version: 4.57.1\n> - Platform: Linux\n> - DeepSpeed version: 0.18.2\n", "tf 4.57.1 hit, ds 0.18.2 hit", 0),
        ("Environment Report:\n-------------------\nOperating System: Linux\nLiger Kernel version: 0.6.4\n"
         "HIP(ROCm) version: Not available\nTriton version: 3.1.0\nTransformers version: 4.57.1\n", "lk 0.6.4 hit, tf 4.57.1 hit", 0),
        ("-----------\nDeepSpeed C++/CUDA extension op report\n-----------\nninja .................. [OKAY]\n"
         " [WARNING]  async_io requires libaio\ntorch version .................... 2.3.0+cu121\n"
         "deepspeed info ................... 0.18.2+46d7d0d1, 46d7d0d1, patch-1\n", "ds 0.18.2+46d7d0d1 git", 0),
        ("torch version .................... 2.4.0\ndeepspeed info ................... 0.18.2, unknown, unknown\n"
         "deepspeed wheel compiled w. ...... torch 2.4, cuda 12.1\n", "ds 0.18.2 hit", 0),
        ("PyTorch version: 2.7.1+cu128\nPython version: 3.12.11 | packaged by Anaconda, Inc. | (main) [GCC 11.2.0]\n"
         "[pip3] numpy==1.26.4\n[pip3] transformers==4.57.1\n[conda] transformers  4.57.1  pypi_0  pypi\n", "tf 4.57.1 hit", 0),
        ("- `Accelerate` version: 0.28.0\n- Python version: 3.9.13\n- Numpy version: 1.21.5\n"
         "- PyTorch version (GPU?): 2.2.1+cu121 (True)\n- `Accelerate` default config:\n    - debug: True\n", "", 0),
    ],
    "project": [
        ('[project]\nname = "t"\ndynamic = ["dependencies", "version"]\n[build-system]\nrequires = ["setuptools"]\n', "", 1),
        ('[project]\nname = "t"\ndynamic = ["dependencies"]\n[tool.setuptools.dynamic]\ndependencies = { file = ["more.txt"] }\n',
         "ds 0.18.2 hit", 0),
        ('[project]\nname = "y"\ndependencies = [\n  "deepspeed==0.12.2",\n  "transformers==4.36.0",\n]\n',
         "ds 0.12.2 not_hit, tf 4.36.0 unknown", 0),
        ('[project]\nname = "a"\n[project.optional-dependencies]\ndeepspeed = ["deepspeed>=0.18.3,<0.19.0"]\n'
         'liger = ["liger-kernel==0.8.0"]\n', "ds >=0.18.3,<0.19.0 unknown, lk 0.8.0 hit", 0),
        ('[project]\nname = "x"\n[tool.pixi.feature.cuda.target.linux-64.pypi-dependencies]\nliger-kernel = { version = "==0.8.0" }\n'
         '[tool.pixi.dependencies]\ntransformers = "4.57.1.*"\n', "lk 0.8.0 hit, tf conda", 0),
        ('[project]\nname = "x"\n[tool.hatch.envs.train.overrides]\nmatrix.v.dependencies = ["deepspeed==0.18.2"]\n', "", 1),
        ('[tool.rye]\ndev-dependencies = ["deepspeed==0.18.2"]\n[tool.flit.metadata]\nmodule = "x"\n'
         'requires = ["transformers==4.57.1"]\n', "ds 0.18.2 hit, tf 4.57.1 hit", 0),
        ('[tool.poetry.dependencies]\npython = "^3.10"\n'
         'deepspeed = [{version = "0.18.2", markers = "sys_platform == \'linux\'"}, {version = "0.18.3"}]\n',
         "ds 0.18.2 hit, ds 0.18.3 not_hit", 0),
        ("[metadata]\nname = t\n[options]\ninstall-requires =\n    accelerate>=0.17.1\n    deepspeed==0.18.2\n[options.extras_require]\n"
         "bnb = bitsandbytes\n", "ds 0.18.2 hit", 0),
        ("[metadata]\r\nname = t\r\n[options]\r\ninstall_requires = transformers==4.57.1; deepspeed==0.18.3\r\n",
         "tf 4.57.1 hit, ds 0.18.3 not_hit", 0),
        ("[metadata]\nname = t\n[options]\ninstall_requires = file: more.txt\n[options.extras_require]\na = liger-kernel==0.8.5\n",
         "ds 0.18.2 hit, lk 0.8.5 not_hit", 0),
        ('from setuptools import setup\n_deps = ["transformers==4.52.3", "deepspeed==0.16.8"]\n'
         'deps = {b: a for a, b in (x.split("==") for x in _deps)}\nsetup(name="o", install_requires=[deps["transformers"]])\n',
         "tf 4.52.3 hit, ds 0.16.8 not_hit", 1),
    ],
    "script": [
        ("conda install pytorch==2.1.2 pytorch-cuda=12.1 -c pytorch -c nvidia\npip install transformers==4.47.0\n"
         "pip install deepspeed==0.16.5\n", "tf 4.47.0 hit, ds 0.16.5 not_hit", 0),
        ("pip install -e transformers/\npip install transformers[torch]==4.46.3 deepspeed[torch]==0.18.2\n",
         "tf 4.46.3 hit, ds 0.18.2 hit", 1),
        ("#!/bin/bash\npip install torch==${TORCH} deepspeed==0.18.2\n", "ds 0.18.2 hit", 1),
        ("#!/bin/bash\npip install torch==$(cat torch.txt) torchvision==`cat v` deepspeed==0.18.2\n", "ds 0.18.2 hit", 2),
        ("- run: pip install torch==${{ matrix.torch }} deepspeed==0.18.2\n", "ds 0.18.2 hit", 1),
        ("#!/bin/bash\nP=deepspeed==0.18.3\nP+=' transformers==4.57.1'\npip install $P\n", "ds 0.18.3 not_hit, tf 4.57.1 hit", 0),
        ('#!/bin/bash\nP="\n  transformers==4.57.1\n"\npip install $P deepspeed==0.18.3\n', "ds 0.18.3 not_hit", 1),
        ("#!/bin/bash\nP=(transformers==4.57.1)\npip install ${P[@]} $P deepspeed==0.18.3\n", "ds 0.18.3 not_hit", 2),
        ('#!/bin/bash\nV=0.18.3\nif [ -n "$OLD" ]; then\n  V=0.18.2\nfi\npip install deepspeed==$V\n', "", 1),
        ("#!/bin/bash\nV=0.18.2\npip install deepspeed==$V\nV=4.57.1\npip install transformers==$V\n", "ds 0.18.2 hit, tf 4.57.1 hit", 0),
        ('#!/bin/bash\nPIP="$HOME/sp/bin/pip"\n$PIP install numpy==1.26.4 transformers==4.46.1 >> "$LOG" 2>&1 deepspeed==0.18.3\n',
         "tf 4.46.1 hit, ds 0.18.3 not_hit", 0),
        ("#!/bin/bash\n$SPIP install transformers==4.46.1\npip install deepspeed==0.18.3\n", "ds 0.18.3 not_hit", 1),
        ("#!/bin/bash\ngit clone https://example.org/DeepSpeed\ncd DeepSpeed && MAX_JOBS=4 python setup.py install\n"
         "pip install liger-kernel==0.8.5\n", "lk 0.8.5 not_hit", 1),
        ("!pip install -q deepspeed==0.18.2\n%pip install liger-kernel==0.8.5\n", "ds 0.18.2 hit, lk 0.8.5 not_hit", 0),
        ("FROM x/y:1\nRUN apt-get install -y git \\\n    # a comment\n    && pip install --no-cache-dir \\\n"
         "        transformers==4.57.1 deepspeed==0.18.0 \\\n        --index-url https://x/y \\\n    && conda clean -a\n",
         "tf 4.57.1 hit, ds 0.18.0 hit", 1),
        ('FROM x/y:1\nARG V=0.18.3\nRUN pip install "deepspeed==${V}" --no-build-isolation && \\\n    pip install -r gone.txt\n'
         "COPY . .\n", "ds 0.18.3 not_hit", 2),
        ("from x/y:1\nrun pip install deepspeed==0.18.3\n", "ds 0.18.3 not_hit", 1),
        ("FROM scratch\nRUN <<EOF\npip install deepspeed==0.18.2\nEOF\n", "ds 0.18.2 hit", 0),
        ("BootStrap: docker\nFrom: x/y:1\n\n%labels\n  Author me\n%post\n  apt-get update\n", "", 1),
        ("bootstrap: docker\nfrom: x/y:1\n%help\n  This image doesn't do much\n%post\n  export DS_BUILD_OPS=1\n"
         '  /opt/conda/bin/pip install deepspeed==0.18.2 --global-option="build_ext"\n', "ds 0.18.2 hit", 1),
    ],
    "lock": [
        ('version = 1\nrevision = 3\n\n[[package]]\nname = "deepspeed"\nversion = "0.18.4"\n'
         'source = { registry = "https://pypi.org/simple" }\n\n[[package]]\nname = "liger-kernel"\nversion = "0.7.0"\n',
         "ds 0.18.4 not_hit, lk 0.7.0 hit", 0),
        ('version = 1\n\n[[package]]\nname = "transformers"\nversion = "5.3.0"\nresolution-markers = ["sys_platform == \'x\'"]\n\n'
         '[[package]]\nname = "transformers"\nversion = "5.5.3"\n', "tf 5.3.0 hit, tf 5.5.3 hit", 0),
        ('# This file is automatically @generated by Poetry 2.1.1.\n\n[[package]]\nname = "transformers"\nversion = "4.51.3"\n'
         'optional = false\ngroups = ["main"]\nfiles = []\n\n[metadata]\nlock-version = "2.1"\n', "tf 4.51.3 hit", 0),
        ('lock-version = "1.0"\ncreated-by = "uv"\n\n[[packages]]\nname = "transformers"\nversion = "4.57.1"\n'
         'marker = "python_full_version < \'3.15\'"\n'
         'wheels = [{ url = "https://x/transformers-4.57.1-py3-none-any.whl", upload-time = 2025-10-14T15:39:26Z, size = 1, '
         'hashes = { sha256 = "0" } }]\n', "tf 4.57.1 hit", 0),
        ('[{"repo_id": "kernels-community/flash-attn2", "sha": "0000000000000000000000000000000000000000", "variants": {}}, '
         '{"repo_id": "kernels-community/liger_kernels", "sha": "1111111111111111111111111111111111111111", "variants": {}}]', "", 2),
        ('{"sbom": {"spdxVersion": "SPDX-2.3", "packages": [{"name": "deepspeed", "versionInfo": "0.18.2", "externalRefs": '
         '[{"referenceLocator": "pkg:pypi/deepspeed@0.18.2"}]}]}}', "ds 0.18.2 hit", 0),
        ('{"bomFormat": "CycloneDX", "components": [{"type": "library", "name": "transformers", "version": "4.57.1", "purl": '
         '"pkg:pypi/transformers@4.57.1"}]}', "tf 4.57.1 hit", 0),
    ],
}  # fmt: skip


def said(one: dict) -> str:
    """An answer as "tf 4.57.1 hit"; the last word is the source where a package is unknown and has one."""
    state = one["source"] if one["state"] == "unknown" and one["source"] else one["state"]
    return " ".join(filter(None, (SHORT[one["package"].removesuffix("-nightly")], one["range"] or one["version"], state)))


@pytest.mark.parametrize("kind", INPUTS)
def test_collected_inputs_have_their_answers(tmp_path: Path, kind: str) -> None:
    (tmp_path / "more.txt").write_text("deepspeed==0.18.2\n")
    for number, (text, _, _) in enumerate(INPUTS[kind]):
        (tmp_path / f"{number}.in").write_bytes(text.encode())
    for number, (text, expected, num_unread) in enumerate(INPUTS[kind]):
        status, found = document(f"{number}.in", "--pack", PACKS, cwd=tmp_path)
        rows = {said(one) for one in found["answers"] if one["state"] != "not_installed"}
        assert rows == set(filter(None, expected.split(", "))), text
        unread = [line for line in found["unread"] if "not pinned" not in line]
        assert len(unread) == num_unread, (unread, text)
        is_clear = rows and all(row.endswith("not_hit") for row in rows) and not found["unread"]
        assert status == (1 if any(row.endswith(" hit") for row in rows) else 0 if is_clear else 3), text


REFUSED = {
    "tools alone": ("[isort]\nknown_third_party =\n    accelerate\n    transformers\n[flake8]\nignore = E203\n", "names no package"),
    "pip show": ("Name: transformers\nVersion: 4.57.1\n", "is YAML of a kind that is not read"),
    "XML": ("<bom xmlns='x'/>\n", "is XML or tag-value"),
    "a config": ("compute_environment: LOCAL_MACHINE\ndeepspeed_config:\n  zero_stage: 2\n", "--code reads a configuration"),
    "a DeepSpeed config": ('{"zero_optimization": {"stage": 2}}', "--code reads a configuration"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_what_is_no_list_is_refused_in_a_line(tmp_path: Path, kind: str) -> None:
    text, reason = REFUSED[kind]
    (tmp_path / "x").write_text(text)
    done = scan("x", cwd=tmp_path)
    assert done.returncode == 2 and not done.stdout and reason in done.stderr and done.stderr.count("\n") == 1, done.stderr


CONFIGS = {
    "auto.json": ('{"zero_optimization": {"stage": 2},\n "gradient_accumulation_steps": "auto"}\n', {("zero2", 2, "cannot_know")}),
    "set.json": ('{"gradient_accumulation_steps": 4,\n "zero_optimization": {"stage": 2}}\n', {("zero2", 1, "meets")}),
    "alone.json": ('{\n  "zero_optimization": {\n    "stage": 2\n  }\n}\n', {("zero2", 3, "cannot_know")}),
    "zero3.json": ('{"zero_optimization": {"stage": 3}, "gradient_accumulation_steps": "auto"}\n', set()),
    "accelerate1.yaml": ("deepspeed_config:\n  gradient_accumulation_steps: 1\n  zero_stage: 1\n", set()),
    "accelerate2.yaml": ("deepspeed_config:\n  offload_param_device: none\n  zero_stage: 2\n", {("zero2", 3, "cannot_know")}),
    "accelerate0.yaml": ("deepspeed_config:\n  gradient_accumulation_steps: 16\n  zero_stage: 0\n", {("trainer", 2, "meets")}),
    "axolotl.yml": ("gradient_accumulation_steps: 4\ndeepspeed: deepspeed_configs/zero2.json\n", {("trainer", 1, "meets")}),
    "runpod.yaml": ("gradient_accumulation_steps: ${STEPS}\n", {("trainer", 1, "cannot_know")}),
    "llamafactory.yaml": ("### train\nper_device_train_batch_size: 1\ngradient_accumulation_steps: 8\n", {("trainer", 3, "meets")}),
    "one.yaml": ("gradient_accumulation_steps: 1\nuse_liger_kernel: true\n", set()),
    "trl.sh": ("accelerate launch t.py \\\n  --gradient_accumulation_steps 8 \\\n  --bf16\n", {("trainer", 2, "meets")}),
    "variable.sh": ("accelerate launch t.py \\\n  --gradient_accumulation_steps $STEPS \\\n", {("trainer", 2, "cannot_know")}),
    "python.sh": (
        "python - <<'E'\nT(gradient_accumulation_steps=config['steps'])\nT(gradient_accumulation_steps=args.steps)\nE\n",
        {("trainer", 2, "cannot_know"), ("trainer", 3, "cannot_know")},
    ),
    "openrlhf.sh": ("deepspeed t.py \\\n  --ds.zero_stage 2 \\\n", {("zero2", 2, "cannot_know")}),
    "megatron.sh": ("ARGS=(\n  --cross-entropy-loss-fusion\n  --cross-entropy-fusion-impl te\n)\n", {("te", 3, "meets")}),
    "megatron_no.sh": ("ARGS=(\n  --micro-batch-size 1\n  --no-gradient-accumulation-fusion\n)\n", set()),
}


def test_collected_configurations_have_their_answers(tmp_path: Path) -> None:
    for name, (text, _) in CONFIGS.items():
        (tmp_path / name).write_text(text)
    slugs = {"zero2_grad_accumulation": "zero2", "trainer_grad_accumulation": "trainer", "te_fused_ce": "te"}
    code = document("--code", tmp_path)[1]["code"]
    found = {(Path(one["file"]).name, slugs[one["slug"]], one["line"], one["state"]) for one in code}
    assert found == {(name, *place) for name, (_, places) in CONFIGS.items() for place in places}
