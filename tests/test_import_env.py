"""The workshop's env files: read without a shell, and turned into config that is checked."""

from __future__ import annotations

import copy
import re
import subprocess

import pytest
import yaml
from workspace import ROOT

from perfscribe import config, config_schema, config_yaml
from perfscribe.importing import env_config, env_file, yaml_edit

SEED = ROOT.parent / "shared" / "seeds" / "003_b620a16257b7c466.txt"
# As the workshop's text has them, with the folder of the user.
BLOOM = """\
# Conda setup
export CONDA_SH_PATH="/path/to/miniforge/etc/profile.d/conda.sh"
export CONDA_ENV="bloom_env"

# WandB settings
export EXPERIMENT_NAME="BLOOM_Multi_GPUS_2_GPUs"
export LOG_DIR="/path/to/multi_gpu/2_gpus/logs"
export WANDB_API_KEY="your_wandb_api_key"

# Model and training parameters
export MODEL_NAME="bigscience/bloom-560m"
export OUTPUT_DIR="/path/to/multi_gpu/2_gpus/outputs/${EXPERIMENT_NAME}"
export MAX_LENGTH=512
export TRAIN_SIZE=500
export EVAL_SIZE=100
export NUM_EPOCHS=5
export BATCH_SIZE=1
export LEARNING_RATE=5e-5
export WEIGHT_DECAY=0.01
export GRAD_ACC=4
export FP16=True
export BF16=False
"""
CUSTOM = BLOOM.replace("BLOOM_Multi", "Custom_Model_Multi").replace('export MODEL_NAME="bigscience/bloom-560m"\n', "")
CUSTOM += """\
export VOCAB_SIZE=50000          # tokenizer vocabulary size
export HIDDEN_SIZE=2048          # embedding & transformer hidden size
export NUM_LAYERS=3              # transformer layers depth
export NUM_HEADS=16              # attention heads per layer
export FF_DIM=8192               # transformer feed-forward dimension
export SEQ_LENGTH=512            # max sequence length
"""


# --- the file --------------------------------------------------------------------------------------------------------


def test_the_workshops_file():
    read = env_file.parse(CUSTOM)
    assert not read.refused and read.exports["OUTPUT_DIR"].endswith("/outputs/Custom_Model_Multi_GPUS_2_GPUs")
    assert read.exports["VOCAB_SIZE"] == "50000" and read.exports["WEIGHT_DECAY"] == "0.01"


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("export A=1", "1"),
        ("  export   A=1   # why", "1"),
        ("export A='a b # c'", "a b # c"),
        ('export A="a \\"b\\" \\$C"', 'a "b" $C'),
        ("export A='$B'", "$B"),
        ("export A=a\\ b", "a b"),
        ("export A=a'b'\"c\"", "abc"),
        ("export A=", ""),
        ("export A=1; export B=2", "1"),
        ("export Z=9 A=1", "1"),
        ("B=2; export A=$B", "2"),
        ("A=5\nexport A", "5"),
        ("export B=2\nexport A=${B}/x", "2/x"),
        ("export A=1\nexport A=2", "2"),
        ("export A=1#2", "1#2"),
    ],
)
def test_quotes_and_variables_are_a_shells(line, value):
    assert env_file.parse(line).exports["A"] == value
    done = subprocess.run(["bash", "-c", f'{line}\nprintf %s "$A"'], capture_output=True, text=True, env={})
    assert done.stdout == value


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("export A=$(hostname)", "a command stands in it"),
        ("export A=`id`", "a command stands in it"),
        ('export A="x$(id)"', "a command stands in it"),
        ("export A=$HOME/x", "it names HOME, which the file has not set"),
        ("export A=${B:-1}", "an expansion that needs a shell"),
        ("export A='open", "a quote that does not end"),
        ('export A="open', "a quote that does not end"),
    ],
)
def test_what_needs_a_shell_is_refused_with_its_line(line, why):
    read = env_file.parse(f"export C=1\n{line}\nexport D=2\n")
    assert read.exports == {"C": "1", "D": "2"}
    ((number, name, said),) = read.refused
    assert (number, name) == (2, "A") and why in said


def test_nothing_is_run(tmp_path):
    env_file.parse(f"export A=$(touch {tmp_path}/x)\nexport B=`touch {tmp_path}/y`\ntouch {tmp_path}/z\n")
    assert list(tmp_path.iterdir()) == []


# --- the config ------------------------------------------------------------------------------------------------------


def number(kind: str, least: float, most: float, default: float) -> dict:
    return {"description": "a test's", "type": kind, "minimum": least, "maximum": most, "default": default}


KNOBS = {
    "max_length": number("integer", 1, 8192, 8),
    "train_size": number("integer", 1, 10**6, 8),
    "eval_size": number("integer", 1, 10**6, 8),
    "num_epochs": number("integer", 1, 1000, 1),
    "learning_rate": number("number", 0, 1, 0.5),
    "weight_decay": number("number", 0, 1, 0.5),
    "grad_acc": number("integer", 1, 1000, 1),
    "vocab_size": number("integer", 1, 10**6, 8),
}
BOOLEAN = {"description": "a test's", "type": "boolean", "default": False}
WIDTHS = ("hidden_size", "num_layers", "num_heads", "ffn", "batch_size")
SIZES = {name: number("integer", 1, 10**6, 1) for name in WIDTHS}
DTYPE = {"description": "a test's", "enum": ["fp32", "fp16", "bf16"], "default": "fp32"}
MODEL = {"description": "a test's", "enum": ["bigscience/bloom-560m", "bloom-tiny"], "default": "bloom-tiny"}
BATCHES = {"description": "a test's", "type": "array", "items": SIZES["ffn"], "minItems": 1, "default": [1]}


@pytest.fixture(autouse=True)
def schema(monkeypatch):
    """The schema with sections of this test's own that are like those of the workshop's experiments."""
    whole = copy.deepcopy(config_schema.schema())
    experiments = whole["properties"]["experiments"]["properties"]
    common = {key: experiments["attention"]["properties"][key] for key in ("enabled", "rounds", "shards")}
    common |= {key: experiments["attention"]["properties"][key] for key in ("isolation", "timeout_s")}
    for name in [name for name, node in experiments.items() if "train_size" in node["properties"]]:
        del experiments[name]
    own = {
        "baseline": {**KNOBS, **SIZES, "fp16": BOOLEAN, "bf16": BOOLEAN, "model_name": MODEL},
        "multi_gpu": {**KNOBS, "dtype": DTYPE, "model_name": MODEL, "batch_size": SIZES["batch_size"]},
        "custom_multi_gpu": {**KNOBS, **SIZES, "dtype": DTYPE},
        "weak_scaling": {**KNOBS, "batch": BATCHES, "layers": BATCHES, "dtype": DTYPE},
    }
    for name, keys in own.items():
        experiments[name] = {"type": "object", "additionalProperties": False, "default": {}, "description": "a test's"}
        experiments[name]["properties"] = {**common, **keys}
    monkeypatch.setattr(config_schema, "schema", lambda: whole)
    monkeypatch.setattr(config, "AT_MOST", ())  # the stand-in sections lack what it compares
    config_schema._validator.cache_clear()
    yield
    monkeypatch.undo()
    config_schema._validator.cache_clear()


@pytest.fixture
def run(tmp_path, capsys):
    """A function that imports a text and gives what was printed on both streams."""

    def do(text: str, *arguments: str) -> tuple[str, str]:
        (tmp_path / "env_vars.sh").write_text(text)
        assert env_config.main(tmp_path, [str(tmp_path / "env_vars.sh"), *arguments]) == 0
        return capsys.readouterr()

    return do


def test_a_bloom_file_becomes_a_section(run):
    out, err = run(BLOOM)
    section = yaml.safe_load(out)["experiments"]["multi_gpu"]
    assert section == {
        "model_name": "bigscience/bloom-560m",
        "max_length": 512,
        "train_size": 500,
        "eval_size": 100,
        "num_epochs": 5,
        "batch_size": 1,
        "learning_rate": 5e-05,
        "weight_decay": 0.01,
        "grad_acc": 4,
        "dtype": "fp16",
    }
    config.check(yaml.safe_load(out))
    assert "WANDB_API_KEY: left out; a secret" in err and "your_wandb_api_key" not in out + err
    assert "/path/to" not in out + err and "CONDA_ENV: left out" in err


def test_names_that_the_scripts_never_read_are_named_with_what_they_read(run):
    out, _ = run(CUSTOM)
    lines = {line.split(":")[0].strip(): line for line in out.splitlines()}
    assert "custom_multi_gpu" in lines and lines["ffn"].endswith("# FF_DIM")
    assert "BATCH_SIZE, which the workshop's scripts never read: they read PER_DEVICE_BATCH_SIZE" in lines["batch_size"]
    assert "GRAD_ACC, which the workshop's scripts never read: they read GRAD_ACC_STEPS" in lines["grad_acc"]
    assert "VOCAB_SIZE, which the workshop's scripts never read: they take the size" in lines["vocab_size"]
    assert lines["max_length"].endswith("# MAX_LENGTH; SEQ_LENGTH") and "never read" not in lines["train_size"]


def test_the_baselines_script_reads_what_is_exported(run):
    out, _ = run(BLOOM.replace("BLOOM_Multi_GPUS_2_GPUs", "BLOOM_Baseline"))
    assert "baseline:" in out and "never read" not in out and "fp16: true" in out


def test_weak_scaling_has_lists(run):
    out, err = run('export EXPERIMENT_NAME="weak_2"\nexport BATCH_SIZE=8\nexport NUM_LAYERS=3\nexport HIDDEN_SIZE=4\n')
    assert yaml.safe_load(out)["experiments"]["weak_scaling"] == {"batch": [8], "layers": [3]}
    assert "HIDDEN_SIZE: experiments.weak_scaling has no key for it" in err


def test_unknown_names_and_refused_lines_are_listed(run):
    _, err = run(BLOOM + "export MY_OWN=1\nexport NUM_EPOCHS=$(nproc)\nexport NCCL_IB_HCA=mlx5\n")
    assert "MY_OWN: unknown, left out" in err and "NUM_EPOCHS: line 24 was not taken; a command stands in it" in err
    assert "NCCL_IB_HCA: left out; set it where ./run is started" in err


@pytest.mark.skipif(not SEED.is_file(), reason="the workshop's text is not here")
def test_every_env_file_of_the_workshops_text(run):
    """Each block of its text that sets up a training."""
    blocks = re.findall(r"(?:^\t[^\n]*\n|^\s*\n)+", SEED.read_text(), re.MULTILINE)
    found = ["\n".join(line.strip() for line in one.splitlines()) for one in blocks if "export NUM_EPOCHS" in one]
    assert len(found) >= 3
    for text in found:
        section = next(iter(yaml.safe_load(run(text)[0])["experiments"].values()))
        assert (section["train_size"], section["eval_size"], section["num_epochs"]) == (500, 100, 5)
        assert (section["grad_acc"], section["dtype"], section["learning_rate"]) == (4, "fp16", 5e-5)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("echo hello\n", "no line of the form export NAME=value"),
        ("export FOO=1\n", "none of its names is a setting"),
        ("export NUM_EPOCHS=five\n", "NUM_EPOCHS: got 'five', expected a whole number from 1 to 1000"),
        ("export NUM_EPOCHS=0\n", "experiments.baseline.num_epochs: got 0, expected a whole number from 1 to 1000"),
        ("export FP16=maybe\n", "FP16: got 'maybe', expected True or False"),
        ("export MODEL_NAME=gpt-9\n", "model_name"),
        (
            "export MAX_LENGTH=512\nexport SEQ_LENGTH=256\n",
            "SEQ_LENGTH: got 256, but MAX_LENGTH asks for",
        ),
        ("export EXPERIMENT_NAME=bloom_multi\nexport FP16=True\nexport BF16=True\n", "BF16: got True, but FP16 asks"),
    ],
)
def test_bad_input_is_one_line(tmp_path, text, why):
    path = tmp_path / "env_vars.sh"
    path.write_text(text)
    with pytest.raises(ValueError, match=re.escape(why)) as caught:
        env_config.main(tmp_path, [str(path)])
    assert len(str(caught.value).splitlines()) == 1 and str(caught.value).startswith("import-env: ")


def test_files_and_options_that_are_not_there(tmp_path):
    with pytest.raises(ValueError, match=r"absent.sh: No such file"):
        env_config.main(tmp_path, [str(tmp_path / "absent.sh")])
    (tmp_path / "env_vars.sh").write_text(BLOOM)
    with pytest.raises(ValueError, match="--experiment nothing: expected one of baseline, multi_gpu"):
        env_config.main(tmp_path, [str(tmp_path / "env_vars.sh"), "--experiment", "nothing"])
    with pytest.raises(SystemExit, match="run: import-env: "):
        env_config.main(tmp_path, [])


# --- into config.yaml ------------------------------------------------------------------------------------------------

BEFORE = """\
site: local   # a name

experiments:

  # the first
  attention:
    batch: 8   # stays

  # BLOOM on several GPUs
  multi_gpu:
    enabled: true             # shown
    num_epochs: {tiny: 1, cpu: 1, gpu: 1}   # times
    # rows
    train_size:
      tiny: 8
      gpu: 500
    grad_acc: 4   # batches

  # the last
  weak_scaling:
    grad_acc: 1
"""


def test_write_keeps_all_else(tmp_path, run):
    path = tmp_path / "config.yaml"
    path.write_text(BEFORE)
    out, _ = run(BLOOM, "--write")
    now = config_yaml.read(path)
    assert now["experiments"]["multi_gpu"]["train_size"] == 500 and now["experiments"]["multi_gpu"]["dtype"] == "fp16"
    text = path.read_text()
    assert "    num_epochs: 5   # times\n" in text
    assert "    # rows\n    train_size: 500\n    grad_acc: 4   # batches" in text
    assert "batch: 8   # stays" in text and now["experiments"]["weak_scaling"] == {"grad_acc": 1}
    assert "experiments.multi_gpu.batch_size: 1 (BATCH_SIZE, which the workshop's scripts never read" in out
    again = path.read_text()
    run(BLOOM, "--write")
    assert path.read_text() == again


def test_write_for_one_preset_alone(tmp_path, run):
    path = tmp_path / "config.yaml"
    path.write_text(BEFORE)
    run(BLOOM.replace("GRAD_ACC=4", "GRAD_ACC=2"), "--write", "--preset", "gpu")
    section = config_yaml.read(path)["experiments"]["multi_gpu"]
    assert section["num_epochs"] == {"tiny": 1, "cpu": 1, "gpu": 5}  # other presets keep what they had
    assert section["grad_acc"] == {"tiny": 4, "cpu": 4, "gpu": 2} and section["batch_size"] == {"gpu": 1}


@pytest.mark.parametrize(
    "text",
    [
        "site: local\n",
        "experiments: {multi_gpu: {grad_acc: 1}}\n",
        "experiments:\n  multi_gpu:\n      grad_acc: 1\n",
        "experiments:\n  multi_gpu: &x\n    grad_acc: 1\n  baseline: *x\n",
    ],
)
def test_a_config_that_cannot_be_edited_is_left_as_it_is(tmp_path, text):
    path, env = tmp_path / "config.yaml", tmp_path / "env_vars.sh"
    path.write_text(text)
    env.write_text(BLOOM)
    with pytest.raises(ValueError) as caught:
        env_config.main(tmp_path, [str(env), "--write"])
    assert len(str(caught.value).splitlines()) == 1 and path.read_text() == text


SCALARS = [1, 5e-05, 1e16, 0.01, True, None, "fp16", "no", "5e-5", "a b", "bigscience/bloom", [1, 2]]


@pytest.mark.parametrize("value", SCALARS)
def test_scalars_read_back(tmp_path, value):
    (tmp_path / "c.yaml").write_text(f"key: {yaml_edit.scalar(value)}\n")
    assert config_yaml.read(tmp_path / "c.yaml") == {"key": value}


def test_the_projects_own_config_can_be_edited():
    """Every section of config.yaml, each key set to what it is."""
    text = (ROOT / "config.yaml").read_text()
    raw = yaml.safe_load(text)
    for experiment, section in raw["experiments"].items():
        edited = yaml_edit.with_values(text, experiment, section)
        assert yaml.safe_load(edited) == raw, experiment
