"""Conditioning: from scratch, without noise, as a look ahead, and leaving one out."""

from copy import deepcopy
from itertools import product

import numpy as np
import pytest
import torch
from botorch.cross_validation import efficient_loo_cv, loo_cv
from botorch.exceptions.errors import UnsupportedError
from botorch.models import SingleTaskGP
from botorch.models.transforms import Normalize, Standardize
from botorch.models.utils.assorted import fantasize
from botorch.sampling import IIDNormalSampler
from gpytorch.settings import prior_mode
from gpytorch.utils.warnings import NumericalWarning

from botorch_bkb.models import SingleTaskDTCGP
from tests.bandits import rbf
from tests.models.test_dtc_gp import assert_same_posterior, dense_answer, plain_model
from tests.models.test_dtc_gp import make_data as random_data


NOISE = 0.05


def make_data():
    stream = torch.Generator().manual_seed(0)
    X, Y = random_data(stream, n=30, d=2, repeats=0)
    return X, Y, torch.rand(8, 2, generator=stream, dtype=torch.double)


# BoTorch's `fantasize` warns of its own shapes where there are no points.
NON_STRICT = "ignore:Non-strict enforcement of botorch tensor conventions"


@pytest.mark.filterwarnings(NON_STRICT)
@pytest.mark.parametrize("train_yvar", [False, True])
@pytest.mark.parametrize("num_inducing", [10, None])
def test_conditioning_on_no_points_changes_nothing(num_inducing, train_yvar):
    X, Y, X_test = make_data()
    S = X[:num_inducing] if num_inducing else None
    Yvar = torch.full_like(Y, NOISE) if train_yvar else None
    model = SingleTaskDTCGP(X, Y, Yvar, inducing_points=S)
    before = model.posterior(X_test)
    nothing = torch.empty(0, 1).double()
    noise = {"noise": nothing} if train_yvar else {}
    conditioned = model.condition_on_observations(X[:0], nothing, **noise)
    torch.testing.assert_close(conditioned.posterior(X_test).mean, before.mean)
    sampler = IIDNormalSampler(torch.Size([3]), seed=0)
    fantasies = model.fantasize(X[:0].expand(5, 0, 2), sampler)
    after = fantasies.posterior(X_test)
    assert after.mean.shape == (3, 5, 8, 1)
    torch.testing.assert_close(after.mean, before.mean.expand(3, 5, 8, 1))
    torch.testing.assert_close(after.variance, before.variance.expand(3, 5, 8, 1))


@pytest.mark.parametrize("num_inducing", [10, None])
def test_a_conditioned_model_can_be_copied(num_inducing):
    X, Y, X_test = make_data()
    S = X[:num_inducing] if num_inducing else None
    model = plain_model(X, Y, rbf(), inducing_points=S).requires_grad_(True)
    conditioned = model.condition_on_observations(X_test[:3], torch.ones(3, 1).to(Y))
    found = deepcopy(conditioned).posterior(X_test)
    expected = conditioned.posterior(X_test)
    assert torch.equal(found.mean, expected.mean)
    assert torch.equal(found.variance, expected.variance)


@pytest.mark.parametrize("num_inducing", [10, None])
def test_conditioning_without_noise_rounds_it_up(num_inducing):
    X, Y, X_test = make_data()
    X_new = X_test[:4]
    Y_new = torch.sin(6 * X_new.sum(dim=-1, keepdim=True))
    S = X[:num_inducing] if num_inducing else None
    model = plain_model(X, Y, rbf(), inducing_points=S)
    for _ in range(3):  # the same rows again and again
        with pytest.warns(NumericalWarning, match="Rounding small noise"):
            model = model.condition_on_observations(
                X_new, Y_new, noise=torch.zeros_like(Y_new)
            )
    # To GPyTorch's `min_fixed_noise`.
    noise = np.r_[np.full(30, NOISE), np.full(12, 1e-6)]
    data = torch.cat([X, *[X_new] * 3]), torch.cat([Y, *[Y_new] * 3])
    S = data[0] if S is None else torch.cat([S, X_new])
    mean, covariance = dense_answer(rbf(), *data, S.unique(dim=0), X_test, noise)
    with torch.no_grad():
        posterior = model.posterior(X_test)
    np.testing.assert_allclose(posterior.mean.squeeze(-1), mean, atol=1e-6)
    np.testing.assert_allclose(
        posterior.variance.squeeze(-1), np.diag(covariance), atol=1e-6
    )


@pytest.mark.parametrize("is_stepwise", [False, True])
def test_fantasies_condition_the_present_posterior_by_bayes_rule(is_stepwise):
    """All at once, or step after step as in multi-step lookahead."""
    X, Y, X_test = make_data()
    model = plain_model(X, Y, rbf(), inducing_points=X[:10])
    X_new = torch.tensor([[0.1, 0.9], [0.95, 0.2]]).double()
    sampler = IIDNormalSampler(torch.Size([16]), seed=0)
    with torch.no_grad():
        fantasies = model.fantasize(X_new[:1] if is_stepwise else X_new, sampler)
        if is_stepwise:
            once = IIDNormalSampler(torch.Size([1]), seed=0)
            fantasies = fantasies.fantasize(X_new[1:], once)
        posterior = fantasies.posterior(X_test)
    mean, covariance = dense_answer(
        rbf(), X, Y, X[:10], torch.cat([X_test, X_new]), NOISE
    )
    outcomes = fantasies.train_targets[..., -2:].reshape(16, 2).numpy()
    gain = np.linalg.solve(covariance[8:, 8:] + NOISE * np.eye(2), covariance[8:, :8])
    expected = mean[:8] + (outcomes - mean[8:]) @ gain
    found = posterior.mean.reshape(16, 8)
    np.testing.assert_allclose(found, expected, atol=1e-8)
    variance = np.diag(covariance)[:8] - (covariance[8:, :8] * gain).sum(0)
    found = posterior.variance.reshape(16, 8)
    np.testing.assert_allclose(found, np.tile(variance, (16, 1)), atol=1e-8)


def test_old_data_speak_through_all_points_after_fantasies_through_which_they_did_not():
    X, Y, X_test = make_data()
    model = plain_model(X, Y, rbf(), inducing_points=X[:10])
    sampler = IIDNormalSampler(torch.Size([4]), seed=0)
    fantasies = model.fantasize(X_test[:2], sampler)
    fantasies = fantasies.fantasize(X_test[2:3], IIDNormalSampler(torch.Size([1])))
    outcomes = fantasies.train_targets[0, :, -3:].unsqueeze(-1).detach()  # 4 x 3 x 1
    new_X, new_Y = X_test[3:5], Y[:2] + 0.3
    found = fantasies.condition_on_observations(
        new_X.expand(1, 4, 2, -1), new_Y.expand(1, 4, 2, 1)
    ).posterior(X_test)
    every_X, S = torch.cat([X, X_test[:5]]), torch.cat([X[:10], X_test[:5]])
    for fantasy in range(2):
        every_Y = torch.cat([Y, outcomes[fantasy], new_Y])
        mean, covariance = dense_answer(rbf(), every_X, every_Y, S, X_test, NOISE)
        got_mean = found.mean[0, fantasy].squeeze(-1).detach().numpy()
        got_variance = found.variance[0, fantasy].squeeze(-1).detach().numpy()
        np.testing.assert_allclose(got_mean, mean, atol=1e-7)
        np.testing.assert_allclose(got_variance, np.diag(covariance), atol=1e-7)


@pytest.mark.parametrize("leading", [(4, 1), (1, 3)])
def test_a_batch_of_fantasies_takes_points_of_smaller_batches(leading):
    X, Y, X_test = make_data()
    model = plain_model(X, Y, rbf(), inducing_points=X[:10])
    sampler = IIDNormalSampler(torch.Size([4]), seed=0)
    fantasies = model.fantasize(X_test[:6].view(3, 2, -1), sampler)  # 4 x 3 models
    full_X = X_test[6:8].expand(4, 3, 2, -1)
    full_Y = Y[:2].expand(4, 3, 2, 1)
    expected = fantasies.condition_on_observations(full_X, full_Y)
    new_X = X_test[6:8].expand(*leading, 2, -1)
    found = fantasies.condition_on_observations(new_X, full_Y)
    for part in ("mean", "variance"):
        got = getattr(found.posterior(X_test), part)
        torch.testing.assert_close(got, getattr(expected.posterior(X_test), part))


# Against models of the other data ---------------------------------------------------


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("transforms", [False, True])
def test_conditioning_equals_a_model_built_from_scratch(sparse, transforms, generator):
    X, Y = random_data(generator)
    options = {}
    if transforms:
        bounds = torch.tensor([[0.0] * 3, [2.0] * 3]).double()
        options = {"input_transform": Normalize(3, bounds=bounds)}
    model = SingleTaskDTCGP(X, Y, inducing_points=X[:10] if sparse else None, **options)
    X_new = torch.rand(4, 3, generator=generator, dtype=torch.double)
    X_new[3] = X_new[0]  # a repeat among the new ones
    X_new[1] = X[2]  # and one of an old input
    Y_new = torch.randn(4, 1, generator=generator, dtype=torch.double)
    conditioned = model.condition_on_observations(X_new, Y_new)
    scratch = SingleTaskDTCGP(
        torch.cat([X, X_new]),
        torch.cat([Y, Y_new]),
        inducing_points=torch.cat([X[:10], X_new]) if sparse else None,
        **options,
    )
    # Standardize keeps the units of the old data in the conditioned model.
    scratch.load_state_dict(model.state_dict(), keep_transforms=False)
    scratch.outcome_transform.eval()
    targets, _ = model.outcome_transform(torch.cat([Y, Y_new]))
    scratch.set_train_data(targets=targets.squeeze(-1), strict=False)
    X_test = torch.rand(6, 3, generator=generator, dtype=torch.double)
    for other in (conditioned, conditioned.train().eval()):
        assert_same_posterior(other.posterior(X_test), scratch.posterior(X_test), 1e-9)


@pytest.mark.parametrize("train_yvar", [False, True])
def test_batched_conditioning_equals_one_by_one_and_chains(train_yvar, generator):
    X, Y = random_data(generator)
    Yvar = torch.full_like(Y, 0.04) if train_yvar else None
    start = SingleTaskDTCGP(X, Y, Yvar, inducing_points=X[:8])
    steps = []
    for q in (2, 1):
        X_new = torch.rand(3, q, 3, generator=generator, dtype=torch.double)
        Y_new = torch.randn(2, 3, q, 1, generator=generator, dtype=torch.double)
        steps.append((X_new, Y_new, {"noise": 0.04 + 0 * Y_new} if train_yvar else {}))
    batched = start
    with fantasize():  # BoTorch's own flag for targets with a fantasy dimension
        for X_new, Y_new, noise in steps:
            batched = batched.condition_on_observations(X_new, Y_new, **noise)
    X_test = torch.rand(3, 4, 3, generator=generator, dtype=torch.double)
    posterior = batched.posterior(X_test)
    assert posterior.mean.shape == (2, 3, 4, 1)
    for fantasy, batch in product(range(2), range(3)):
        single = start
        for X_new, Y_new, noise in steps:
            own = {name: value[fantasy, batch] for name, value in noise.items()}
            new = X_new[batch], Y_new[fantasy, batch]
            single = single.condition_on_observations(*new, **own)
        expected = single.posterior(X_test[batch])
        for part in ("mean", "variance"):
            found = getattr(posterior, part)[fantasy, batch]
            torch.testing.assert_close(found, getattr(expected, part))


def test_gradients_reach_new_inputs_through_conditioning(generator):
    X, Y = random_data(generator)
    model = plain_model(X, Y, rbf(), inducing_points=X[:6])
    X_test = torch.rand(3, 3, generator=generator, dtype=torch.double)
    Y_new = torch.tensor([[0.3]]).double()

    def total(x):
        conditioned = model.condition_on_observations(x, Y_new)
        posterior = conditioned.posterior(X_test)
        return posterior.mean.sum() + posterior.variance.sum()

    x = torch.rand(1, 3, generator=generator, dtype=torch.double, requires_grad=True)
    assert torch.autograd.gradcheck(total, (x,), atol=1e-5)


@pytest.mark.parametrize(
    ("observation_noise", "train_yvar", "standardize"),
    [(True, True, False), (False, True, True), (True, False, True)],
)
def test_leave_one_out_is_a_model_built_without_the_pull(
    observation_noise, train_yvar, standardize, generator
):
    kernel = rbf()
    X, Y = random_data(generator, n=12, repeats=4)
    noise = torch.full((len(X),), 0.05).double()
    options = {"inducing_points": X[:5]}
    if train_yvar:
        noise = 0.01 + torch.rand(len(X), generator=generator, dtype=torch.double)
        options["train_Yvar"] = noise.unsqueeze(-1)
    model = plain_model(X, Y, kernel, **options)
    if standardize:  # other units, the same posterior
        model.outcome_transform = Standardize(1)
        model.outcome_transform.means[:], model.outcome_transform.stdvs[:] = 0.0, 2.0
        model.outcome_transform._stdvs_sq[:] = 4.0
        model.outcome_transform._is_trained.fill_(True)
        model.outcome_transform.eval()
    posterior = model.loo_posterior(observation_noise)
    assert posterior.mean.shape == posterior.variance.shape == (len(X), 1, 1)
    unit = 2.0 if standardize else 1.0
    for i in range(len(X)):
        rest = torch.arange(len(X)) != i
        mean, covariance = dense_answer(
            kernel, X[rest], Y[rest], X[:5], X[i : i + 1], noise[rest].numpy()
        )
        variance = covariance[0, 0] + (noise[i].item() if observation_noise else 0.0)
        assert posterior.mean[i].item() == pytest.approx(unit * mean[0], abs=1e-7)
        expected = pytest.approx(unit**2 * variance, abs=1e-7)
        assert posterior.variance[i].item() == expected


@pytest.mark.parametrize(
    ("num_inducing", "batch", "num_fantasies"),
    [(4, (), 31), (4, (3,), 2), (None, (), 2), (None, (3,), 31)],  # 31: as many as rows
)
def test_fantasies_have_a_posterior_and_no_other_answers(
    num_inducing, batch, num_fantasies
):
    X, Y, X_test = make_data()
    S = None if num_inducing is None else X[:num_inducing]
    transform = Normalize(2) if num_fantasies == 2 else None
    model = SingleTaskDTCGP(X, Y, inducing_points=S, input_transform=transform)
    sampler = IIDNormalSampler(torch.Size([num_fantasies]), seed=0)
    fantasies = model.fantasize(X_test[0].expand(*batch, 1, 2), sampler)
    before = fantasies.posterior(X_test).mean
    calls = [
        fantasies.effective_dimension,
        fantasies.leverage_scores,
        lambda: fantasies.leverage_scores(X_test),
        fantasies.loo_posterior,
        fantasies.resample_inducing_points,
        lambda: fantasies.set_inducing_points(X[:3]),
    ]
    if batch:
        calls.append(fantasies.log_det)
    if num_inducing is None:
        calls.append(lambda: fantasies.inducing_points)
    for call in calls:
        with pytest.raises(UnsupportedError, match="ask the model that they were made"):
            call()
    torch.testing.assert_close(fantasies.posterior(X_test).mean, before)
    fantasies.train()
    with pytest.raises(UnsupportedError, match="Expected unbatched training data"):
        fantasies(*fantasies.train_inputs)
    assert model.effective_dimension() > 0


def test_botorch_leaves_one_out_of_exact_models_only(generator):
    X, Y = random_data(generator)
    exact, stock = SingleTaskDTCGP(X, Y).eval(), SingleTaskGP(X, Y).eval()
    stock.load_state_dict(exact.state_dict(), strict=False)
    expected = loo_cv(stock).posterior
    for found in (loo_cv(exact).posterior, exact.loo_posterior()):
        torch.testing.assert_close(found.mean, expected.mean)
        torch.testing.assert_close(found.variance, expected.variance)
    sparse = SingleTaskDTCGP(X, Y, inducing_points=X[:5])
    for function, training in product((loo_cv, efficient_loo_cv), (True, False)):
        sparse.train(training)
        with pytest.raises(UnsupportedError, match="Use `loo_posterior`"):
            function(sparse)
    with prior_mode():  # is the prior for all that
        prior = sparse(sparse.train_inputs[0]).covariance_matrix
    torch.testing.assert_close(prior, sparse.covar_module(X).to_dense())
