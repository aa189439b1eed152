import pytest
import torch

from vitrine.errors import ConfigError, DataError
from vitrine.evaluation.closed_form import L2_CHOICES, fit_closed_form
from vitrine.evaluation.closed_form_candidates import Method, folds_of
from vitrine.evaluation.linear_fits import logistic_line
from vitrine.evaluation.ridge import Normalisation, ridge_solutions, with_constant


def clouds(*, count=40, width=12, classes=4, spread=1.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(classes, width, generator=generator)
    labels = torch.arange(count) % classes
    return centres[labels] + spread * torch.randn(count, width, generator=generator), labels


@pytest.mark.parametrize(("count", "width"), [(40, 12), (10, 32)], ids=["many examples", "many features"])
def test_weights_are_those_of_the_few_shot_ridge_regression(count, width):
    features, labels = clouds(count=count, width=width)
    found = fit_closed_form(features, labels, num_classes=4, l2=7.0)
    X = with_constant(Normalisation.of(features)(features))
    Y = 2 * torch.nn.functional.one_hot(labels, 4).double() - 1
    [expected] = ridge_solutions(X, Y, l2=[7.0])
    # Float64 on both sides; the squared condition number of XtX costs some digits.
    torch.testing.assert_close(found.weights, expected, rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("count", [24, 9])
def test_leaving_one_out_is_that_of_fitting_again_without_it(count):
    features, labels = clouds(count=count, spread=2.0)
    found = fit_closed_form(features, labels, num_classes=4, l2=3.0)
    X = with_constant(found.normalise(features))
    Y = 2 * torch.nn.functional.one_hot(labels, 4).double() - 1
    right = 0
    for row in range(count):
        rest = [other for other in range(count) if other != row]
        [weights] = ridge_solutions(X[rest], Y[rest], l2=[3.0])
        right += int((X[row] @ weights).argmax() == labels[row])
    assert found.left_out_accuracy == pytest.approx(right / count)


def test_noise_is_answered_with_more_l2_and_less_confidence():
    clear = fit_closed_form(*clouds(count=200, spread=0.1), num_classes=4)
    noisy = fit_closed_form(*clouds(count=200, spread=30.0), num_classes=4)
    assert clear.left_out_accuracy > 0.99
    assert noisy.left_out_accuracy < 0.5
    rows = clouds(count=50, spread=0.1)[0]
    assert clear.probabilities(rows).max(dim=1).values.mean() > 0.9
    assert noisy.probabilities(rows).max(dim=1).values.mean() < 0.5


def test_the_head_on_plain_features_gives_the_same_logits():
    features, labels = clouds(count=60)
    found = fit_closed_form(features, labels, num_classes=4)
    weight, bias = found.head()
    torch.testing.assert_close(features.double() @ weight.T + bias, found.logits(features))


@pytest.mark.parametrize("method", ["ridge", "discriminant", "logistic"])
def test_each_method_finds_clouds_that_a_line_divides(method):
    features, labels = clouds(count=80, spread=0.3)
    found = fit_closed_form(features, labels, num_classes=4, methods=(method,))
    assert found.method == method
    assert found.left_out_accuracy == 1
    assert (found.scores(features).argmax(dim=1) == labels).all()


def test_logistic_regression_is_that_of_scikit_learn():
    linear_model = pytest.importorskip("sklearn.linear_model")
    features, labels = clouds(count=80, spread=2.0)
    rows = Normalisation.of(features)(features)
    theirs = linear_model.LogisticRegression(C=0.1, tol=1e-8, max_iter=1000).fit(rows.numpy(), labels.numpy())
    zeros = torch.zeros(12, 4).double(), torch.zeros(4).double()
    line, bias = logistic_line(rows, labels, torch.ones(80).double(), strength=0.1, start=zeros)
    ours = (rows @ line + bias).softmax(dim=1)
    # Ours stops at a gradient of 1e-5 in float32.
    torch.testing.assert_close(ours, torch.from_numpy(theirs.predict_proba(rows.numpy())), atol=1e-3, rtol=0)


def test_several_labels_per_example_are_learned_with_sigmoids():
    features, labels = clouds(count=120, spread=0.3)
    flags = torch.nn.functional.one_hot(labels, 4)
    flags[:, 0] |= flags[:, 1]
    found = fit_closed_form(features, flags, num_classes=4)
    assert ((found.probabilities(features) > 0.5) == flags.bool()).double().mean() > 0.99


def test_a_balanced_fit_is_better_on_rare_classes():
    features, labels = clouds(count=1600, spread=2.5)
    few = torch.cat([torch.nonzero(labels == k)[: 12 if k == 3 else 100, 0] for k in range(4)])
    rest = torch.arange(400, 1600)
    plain, balanced = (
        fit_closed_form(features[few], labels[few], num_classes=4, is_balanced=value)
        for value in (False, True)
    )
    rare = rest[labels[rest] == 3]
    hits = [(fit.scores(features[rare]).argmax(dim=1) == 3).double().mean() for fit in (plain, balanced)]
    assert hits[1] > hits[0]


def test_left_out_logits_have_not_seen_their_label():
    labels = torch.arange(100) % 4
    noise = torch.randn(100, 12, generator=torch.Generator().manual_seed(5))
    found = fit_closed_form(noise, labels, num_classes=4)
    assert found.left_out_logits.shape == (100, 4)
    # Labels that features say nothing about are guessed: 25 % with a standard deviation of 4.3 %.
    assert found.left_out_accuracy < 0.4


def test_probabilities_are_about_right_on_new_examples():
    features, labels = clouds(count=400, spread=2.5)
    found = fit_closed_form(features[:200], labels[:200], num_classes=4)
    probabilities = found.probabilities(features[200:])
    torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(200, dtype=torch.float64))
    said = probabilities.max(dim=1).values.mean()
    is_right = (probabilities.argmax(dim=1) == labels[200:]).double().mean()
    # 200 examples: a standard deviation of about 0.03.
    assert abs(said - is_right) < 0.1


def test_what_makes_no_classifier_is_refused():
    features, labels = clouds()
    with pytest.raises(ConfigError, match="must be above 0"):
        fit_closed_form(features, labels, num_classes=4, l2=0.0)
    with pytest.raises(DataError, match="at least two"):
        fit_closed_form(features[:1], labels[:1], num_classes=4)
    assert fit_closed_form(features, labels, num_classes=4, methods=("ridge",)).l2 in L2_CHOICES


def test_a_fold_has_as_many_examples_of_every_class() -> None:
    """With fewer left of its own class than of the others, a left-out example would score too low."""
    for per_class, expected in ((3, 3), (5, 5), (40, 5)):
        labels = torch.arange(150).repeat(per_class)
        folds = folds_of(labels, seed=0)
        assert len(folds) == expected
        for _, fold in folds:
            assert torch.bincount(labels[fold]).tolist() == [per_class // expected] * 150


@pytest.mark.parametrize("method", ["discriminant", "logistic"])
def test_left_out_accuracy_is_that_of_new_examples_with_few_per_class(method: Method) -> None:
    """Fits without a fifth of 20 examples per class are right 3.5 points less often than the one that is kept."""
    generator = torch.Generator().manual_seed(0)
    centres = 0.3 * torch.randn(40, 150, generator=generator)

    def drawn(each: int) -> tuple[torch.Tensor, torch.Tensor]:
        labels = torch.arange(40).repeat(each)
        return centres[labels] + torch.randn(len(labels), 150, generator=generator), labels

    differences = []
    for _ in range(4):
        features, labels = drawn(20)
        new, truth = drawn(100)
        solved = fit_closed_form(features, labels, num_classes=40, methods=(method,))
        accuracy = float((solved.scores(new).argmax(dim=1) == truth).double().mean())
        differences.append(solved.left_out_accuracy - accuracy)
    # The standard error is 1 point: four draws of 800 left-out examples share their classes.
    assert abs(sum(differences) / len(differences)) < 0.02
