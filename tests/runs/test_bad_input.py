"""What a user can get wrong ends in one line that says what, where, and what was expected."""

import pytest

from structsparse.corpora.known.tagging import files
from structsparse.tasks.tagging.data import prepare
from tests.support.runs import ROOT, TWO_STAGES, litter, run_program

RECURRENT = ("model=recurrent", "features.codes=[word,pos]", "reg.parameters=['scorer.output.weight']")
GROUPED = ("reg=group_lasso", "recipe=direct")
GOOD = "Ada N B-PER\nhas V O\nsung V O\n\nin P O\nBasel N B-LOC\n\n" * 4


@pytest.fixture
def corpus(tmp_path):
    """Files of columns, and the options that name them. A part that is not given is good."""

    def corpus(**parts: str | bytes) -> tuple[str, ...]:
        options = ["data=files", "data.columns=[word,pos,tag]", "features.templates=['word[0]','pos[0]']"]
        for part in ("train", "dev", "test"):
            text = parts.get(part, GOOD)
            (tmp_path / f"{part}.txt").write_bytes(text if isinstance(text, bytes) else text.encode())
            options.append(f"data.{part}={tmp_path / f'{part}.txt'}")
        return tuple(options)

    return corpus


def assert_refused(found, *fragments: str) -> None:
    """One line on the error stream, status 2, nothing of results."""
    assert (found.status, found.errors.count("\n")) == (2, 1), found.errors
    assert found.errors.startswith("error: ")
    for fragment in fragments:
        assert fragment in found.errors
    assert not (found.folder / "metrics.json").exists()
    assert not (found.folder / "model").exists()


# --- files


@pytest.mark.parametrize("part", ["train", "dev", "test"])
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no sentence in it, expected lines of 3 (word pos tag)"),
        ("\n \n-DOCSTART- -X- O\n\n", "no sentence in it"),
        ("Ada N B-PER\nhas V O\n\nsings V\n", "line 4: 2 columns, expected 3 (word pos tag)"),
        ("Ada N B-PER too\n", "line 1: 4 columns, expected 3"),
        ("Ada N B-PER\n\nin P O\nBasel N LOC\n", "sentence 2, token 2: tag 'LOC' is malformed, expected O or B-"),
    ],
)
def test_a_file_is_blamed_where_it_is_wrong(part, text, reason, corpus, run):
    assert_refused(run(data=corpus(**{part: text})), f"{part}.txt", reason)


@pytest.mark.parametrize("part", ["train", "dev", "test"])
def test_a_missing_file_is_named(part, corpus, run, tmp_path):
    options = corpus()
    (tmp_path / f"{part}.txt").unlink()
    assert_refused(run(data=options), f"error: {tmp_path / f'{part}.txt'}: no such file, expected a file of columns")


def test_the_program_says_so_in_one_line_too(tmp_path):
    missing = tmp_path / "missing.txt"
    found = run_program("data=files", f"data.train={missing}", f"data.test={missing}", folder=tmp_path / "run", data=())
    assert_refused(found, f"error: {missing}: no such file")
    assert found.output == ""
    assert litter(tmp_path) == []


def test_a_folder_is_no_file(corpus, run, tmp_path):
    assert_refused(run(f"data.train={tmp_path}", data=corpus()), "is a directory, expected a file of columns")


def test_files_must_be_named(run):
    assert_refused(run(data=("data=files",)), "data.train needs a value")


@pytest.mark.parametrize("share", [0, 1, 0.01, -0.5, 7])
def test_a_part_for_dev_must_leave_two_parts(share, corpus, run):
    assert_refused(run("data.dev=null", f"data.held_out={share}", data=corpus()), "data.held_out")


@pytest.mark.parametrize(
    ("option", "fragments"),
    [
        ("data.scheme=iob9", ("scheme 'iob9' is unknown", "iob2, iob1, iobes")),
        ("data.stray=maybe", ("stray 'maybe' is unknown", "repair, refuse")),
        ("data.comments=perhaps", ("comments='perhaps' is unknown", "auto, always or never")),
        ("data.columns=[word,tag]", ("train.txt, line 1: 3 columns, expected 2 (word tag)",)),
        ("data.columns=[word,word,tag]", ("must be distinct",)),
        ("data.columns=[word,pos,ner]", ("train.txt: no column 'tag' (task.tag); there are word, pos, ner",)),
        ("task.scheme=bio", ("scheme 'bio' is unknown",)),
    ],
)
def test_what_is_said_of_the_files_must_be_known(option, fragments, corpus, run):
    assert_refused(run(option, data=corpus()), *fragments)


@pytest.mark.parametrize("part", ["train", "dev", "test"])
def test_planted_parts_hold_a_sentence_at_least(part, run):
    assert_refused(run(f"data.{part}=0"), f"{part}: no sentence in it")


# --- tags


STRAY = GOOD + "Ada N I-PER\nin P O\nBasel N I-LOC\n\n"


@pytest.mark.parametrize("part", ["train", "dev", "test"])
def test_a_tag_outside_its_scheme_is_repaired_and_counted(part, corpus, run):
    found = run("data.scheme=iob2", data=corpus(**{part: STRAY}))
    assert found.status == 0
    assert f"{part}: 2 tags outside the iob2 scheme were repaired" in found.output
    assert found.output.count("were repaired") == 1


@pytest.mark.parametrize("part", ["train", "dev", "test"])
def test_a_tag_outside_its_scheme_is_refused_and_counted(part, corpus, run):
    found = run("data.scheme=iob2", "data.stray=refuse", data=corpus(**{part: STRAY}))
    assert_refused(found, f"{part}.txt, sentence 9, token 1: tag I-PER does not fit iob2, expected B-PER", "2 stray")


def test_a_label_that_training_never_saw_is_reported_and_wrong(corpus, run):
    """Two of five test tokens bear it; the rest is easy."""
    test = "Ada N B-PER\nhas V O\nsung V O\nHamlet N B-WORK\nOthello N B-WORK\n\n"
    found = run("trainer.max_epochs=8", "reg.strength=0.001", data=corpus(test=test))
    assert found.status == 0
    assert "B-WORK: label not seen in training, every one of its tags counts as wrong" in found.output
    assert found.metrics["recall"] == pytest.approx(1 / 3)
    assert found.metrics["accuracy"] == pytest.approx(3 / 5)


def test_a_label_of_dev_alone_is_reported_too(corpus, run):
    found = run(data=corpus(dev=GOOD + "Hamlet N B-WORK\n\n"))
    assert found.status == 0
    assert "B-WORK: label not seen in training" in found.output


def test_values_that_training_never_saw_are_counted(corpus):
    options = dict(option.split("=", 1) for option in corpus(test="Bern N B-LOC\nBern N B-LOC\nin P O\n\n")[3:])
    splits = files(
        *(options[f"data.{part}"] for part in ("train", "dev", "test")),
        *(["word", "pos", "tag"], "auto", "repair", "auto", 0.1, 0),
    )
    notes = prepare(splits, ["word[0]", "pos[0]"]).notes
    assert "test: 2 feature occurrences not seen in training were dropped" in notes
    assert "dev: 0 feature occurrences not seen in training were dropped" in notes


# --- features


@pytest.mark.parametrize(
    ("options", "fragments"),
    [
        (("features.min_count=10000",), ("train: no feature of 5 templates occurs 10000 times (features.min_count)",)),
        (("features.min_count=0",), ("features.min_count is 0", "at least 1")),
        (("features.templates=[]",), ("features.templates is empty",)),
        (("features.templates=['word[0']",), ("template 'word[0'", "is not understood; write word[0]")),
        (("features.templates=['word[2..1]']",), ("template 'word[2..1]'", "runs backwards")),
        (("features.templates=['3-grams of word[0..1]']",), ("no 3- to 3-grams fit a window of 2 offsets",)),
        (("features.templates=['word[0] & word[0]']",), ("names the same attribute and offset twice",)),
        (("features.templates=['word[0]','word[0]']",), ("template 'word[0]' is given twice",)),
        (("features.templates=['lemma[0]']",), ("attribute 'lemma' is neither a column nor made from the word",)),
        (("features.templates=['tag[0]']",), ("no feature template is left",)),
        (("features.dense=[word]",), ("train: column 'word' (features.dense) is not numeric",)),
        (("features.dense=[length]",), ("attribute 'length' is neither a column nor made from the word",)),
        (("features.codes=[lemma]",), ("attribute 'lemma' is neither a column nor made from the word",)),
        (("model=sparse_dense",), ("DenseScorer needs numeric columns; name them in features.dense",)),
        (("model=recurrent",), ("RecurrentScorer needs coded attributes; name them in features.codes",)),
    ],
)
def test_features_that_cannot_be_made_are_refused(options, fragments, run):
    assert_refused(run(*options), *fragments)


@pytest.mark.parametrize("value", ["nan", "inf", "-inf", "1e99"])
def test_a_numeric_column_holds_finite_numbers(value, corpus, run):
    numbers = GOOD.replace(" N ", " 0.5 ").replace(" V ", " -2 ").replace(" P ", " 1 ")
    data = (*corpus(train=numbers, dev=numbers, test=numbers.replace("0.5", value, 1)), "features.dense=[pos]")
    found = run("model=sparse_dense", data=data)
    assert_refused(found, f"test.txt: column 'pos' (features.dense) holds {value}, expected finite numbers")


# --- penalties


@pytest.mark.parametrize(
    ("options", "fragments"),
    [
        (("reg.strength=-1",), ("the strength of L1 is -1, expected a finite number of at least 0",)),
        (("reg.strength=nan",), ("the strength of L1 is nan",)),
        (("reg.strength=inf",), ("the strength of L1 is inf",)),
        (("reg.strength=strong",), ("reg.strength=strong: expected a finite number of at least 0, or auto",)),
        ((*GROUPED, "reg.strength=-0.1"), ("the strength of GroupLasso is -0.1",)),
        (("reg=none", "reg.strength=1"), ("NoPenalty has strength 1, expected 0",)),
        (("reg=elastic_net", "reg.mix=2"), ("the mix of ElasticNet is 2, expected a number from 0 to 1",)),
        (("reg=l2", "reg.relative=true"), ("reg.relative=true, but no strength of this penalty makes every weight",)),
        (("reg.parameters=['*tabel']",), ("'*tabel' matches no parameter", "transitions, start, end, scorer.table")),
        (("reg.parameters=['*table','x']",), ("'x' matches no parameter",)),
        (("reg.parameters=['*']",), ("matches every parameter",)),
        (("reg.parameters=[]",), ("reg.parameters is empty", "scorer.table")),
        (("reg.every=0",), ("reg.every=0 must be at least 1",)),
        (("reg.every=abc",), ("reg.every='abc' must be a number of steps",)),
        (("reg.warmup=1.5",), ("reg.warmup=1.5 must be a number of steps",)),
        (("reg=tree_l2", "groups=template"), ("TreeGroupLasso takes nested groups: choose groups=template_tree",)),
        (("reg.warmup=-3",), ("reg.warmup=-3 at least 0",)),
        ((*GROUPED, "groups.weights=heavy"), ("unknown group weights 'heavy'", "one, sqrt_size, log2_size")),
        ((*RECURRENT, *GROUPED), ("groups=template does not fit tagger.scorer.output.weight (5, 128)",)),
        ((*RECURRENT, *GROUPED, "groups=feature"), ("groups=feature does not fit tagger.scorer.output.weight",)),
        ((*RECURRENT, *GROUPED, "groups=label"), ("groups=label does not fit", "5 labels along dimension 1")),
    ],
)
def test_a_penalty_that_makes_no_sense_is_refused(options, fragments, run):
    assert_refused(run(*options), *fragments)


@pytest.mark.parametrize("reg", ["group_lasso", "sparse_group_lasso", "l1"])
def test_a_selection_that_leaves_nothing_is_refused(reg, run):
    """Above the critical strength every group stays zero, exactly, and that is said with both strengths."""
    found = run(*TWO_STAGES, f"reg={reg}", "reg.strength=1.1", "++recipe.select.batch=null", "solver=sgd")
    assert "rows alive 0" in found.output
    assert_refused(found, "every group is dead: at strength ", "(critical ", "lower reg.strength")
    words = found.errors.replace("(", " ").replace(")", " ").split()
    strength, critical = (float(words[words.index(name) + 1]) for name in ("strength", "critical"))
    assert strength == pytest.approx(1.1 * critical, rel=1e-3)


def test_a_selection_that_leaves_nothing_of_a_dense_model_is_refused(run):
    options = (*TWO_STAGES, *RECURRENT, "reg=l1", "++recipe.refit.reg.parameters=['scorer.output.weight']")
    found = run(*options, "reg.strength=100", "++recipe.select.batch=null", "solver=sgd", "solver.lr=0.01")
    assert_refused(found, "every group is dead")


# --- optimizers and trainers


@pytest.mark.parametrize(
    ("options", "fragments"),
    [
        (("solver=sgd", "solver.lr=-1"), ("solver", "lr is -1")),
        (("solver=adam", "solver.lr=-1"), ("solver: Invalid learning rate: -1",)),
        (("+solver.weight_decay=0.1",), ("solver: RowAdagrad.__init__() got an unexpected keyword argument",)),
        (("trainer.gradient_clip_val=1.0",), ("trainer.gradient_clip_val=1.0 shortens the gradient",)),
        (("choose=median",), ("choose='median'", "'best' model on dev or its 'last' one")),
        (("batch=0",), ("batch=0 cannot be shared by 1 processes",)),
        (("+recipe.fit.strength=3",), ("recipe: 'strength' is no option of a stage; there are seed, batch",)),
        (
            ("model._target_=structsparse.tasks.tagging.model.Spars",),
            ("structsparse.tasks.tagging.model.Spars", "full_key: model"),
        ),
        (("+data.sentences=7",), ("unexpected keyword argument 'sentences'", "full_key: data")),
        (("trainer.precision=1-true",), ("trainer: Precision '1-true' is invalid",)),
        (("+trainer.epochs=7",), ("trainer: ", "unexpected keyword argument 'epochs'")),
        (("trainer.accelerator=gpu", "trainer.devices=99"), ("gpu",)),
    ],
)
def test_a_training_that_cannot_be_is_refused(options, fragments, run):
    assert_refused(run(*options), *fragments)


# --- options


CHOICES = sorted(path.name for path in (ROOT / "conf").iterdir() if path.is_dir())


@pytest.mark.parametrize("group", CHOICES)
def test_an_unknown_choice_is_answered_with_the_known_ones(group, run):
    found = run(f"{group}=nonsense", data=())
    assert_refused(found, f"{group}=nonsense is not known")
    known = {path.stem for path in (ROOT / "conf" / group).glob("[!_]*.yaml")}
    listed = set(found.errors.split("Known are ")[1].strip().split(", "))
    assert listed == known | ({"fast", "accurate", "small"} if group == "preset" else set())


@pytest.mark.parametrize(
    ("option", "meant"),
    [
        ("reg=grup_lasso", "reg=grup_lasso is not known; did you mean reg=group_lasso?"),
        ("reg.strenght=1", "reg.strenght is no option of this run; did you mean reg.strength?"),
        ("tsk=ner", "tsk is no option of this run; did you mean task?"),
    ],
)
def test_a_misspelt_option_is_answered_with_the_nearest(option, meant, run):
    assert_refused(run(option), meant)
