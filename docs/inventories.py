"""Names of other projects that our pages link to, as inventories for intersphinx.

Sphinx would fetch such inventories from the projects' sites; a build must not depend on
a network, so the few names that are used stand here. Left: the name where Python
defines it (`torch.Tensor.__module__` and so on), which is how autodoc writes types;
right: the page of the project's documentation and the anchor on it, `$` for the name
itself. A name that is missing here is a warning of `sphinx-build -n`.
"""

import zlib
from pathlib import Path


# Project: site, and names with their role and page.
PROJECTS: dict[str, tuple[str, dict[str, tuple[str, str]]]] = {
    "python": (
        "https://docs.python.org/3/",
        {
            "abc.ABC": ("class", "library/abc.html#$"),
            "argparse.Namespace": ("class", "library/argparse.html#$"),
            "collections.abc.Callable": ("class", "library/collections.abc.html#$"),
            "collections.abc.Collection": ("class", "library/collections.abc.html#$"),
            "collections.abc.Iterable": ("class", "library/collections.abc.html#$"),
            "collections.abc.Mapping": ("class", "library/collections.abc.html#$"),
            "collections.abc.Sequence": ("class", "library/collections.abc.html#$"),
            "os.PathLike": ("class", "library/os.html#$"),
            "pathlib.Path": ("class", "library/pathlib.html#$"),
            "threading.RLock": ("class", "library/threading.html#$"),
            "xml.etree.ElementTree.Element": (
                "class",
                "library/xml.etree.elementtree.html#$",
            ),
        },
    ),
    "numpy": (
        "https://numpy.org/doc/stable/",
        {
            "numpy.bool": ("class", "reference/arrays.scalars.html#$"),
            "numpy.dtype": ("class", "reference/generated/numpy.dtype.html#$"),
            "numpy.float64": ("class", "reference/arrays.scalars.html#$"),
            "numpy.int64": ("class", "reference/arrays.scalars.html#$"),
            "numpy.ndarray": ("class", "reference/generated/numpy.ndarray.html#$"),
            "numpy.uint8": ("class", "reference/arrays.scalars.html#$"),
        },
    ),
    "pandas": (
        "https://pandas.pydata.org/docs/",
        {
            "pandas.DataFrame": ("class", "reference/api/pandas.DataFrame.html#$"),
            "pandas.Index": ("class", "reference/api/pandas.Index.html#$"),
            "pandas.Series": ("class", "reference/api/pandas.Series.html#$"),
        },
    ),
    "matplotlib": (
        "https://matplotlib.org/stable/",
        {
            "matplotlib.axes._axes.Axes": (
                "class",
                "api/_as_gen/matplotlib.axes.Axes.html#matplotlib.axes.Axes",
            ),
            "matplotlib.figure.Figure": ("class", "api/figure_api.html#$"),
        },
    ),
    "torch": (
        "https://docs.pytorch.org/docs/stable/",
        {
            "torch.Size": ("class", "size.html#$"),
            "torch.Tensor": ("class", "tensors.html#$"),
            "torch._C.Generator": (
                "class",
                "generated/torch.Generator.html#torch.Generator",
            ),
            "torch.device": ("class", "tensor_attributes.html#$"),
            "torch.dtype": ("class", "tensor_attributes.html#$"),
        },
    ),
    "gpytorch": (
        "https://docs.gpytorch.ai/en/stable/",
        {
            "gpytorch.constraints.constraints.Interval": (
                "class",
                "constraints.html#gpytorch.constraints.Interval",
            ),
            "gpytorch.distributions.multivariate_normal.MultivariateNormal": (
                "class",
                "distributions.html#gpytorch.distributions.MultivariateNormal",
            ),
            "gpytorch.kernels.kernel.Kernel": (
                "class",
                "kernels.html#gpytorch.kernels.Kernel",
            ),
            "gpytorch.kernels.scale_kernel.ScaleKernel": (
                "class",
                "kernels.html#gpytorch.kernels.ScaleKernel",
            ),
            "gpytorch.likelihoods.likelihood.Likelihood": (
                "class",
                "likelihoods.html#gpytorch.likelihoods.Likelihood",
            ),
            "gpytorch.means.mean.Mean": ("class", "means.html#gpytorch.means.Mean"),
            "gpytorch.mlls.marginal_log_likelihood.MarginalLogLikelihood": (
                "class",
                "marginal_log_likelihoods.html#gpytorch.mlls.MarginalLogLikelihood",
            ),
            "gpytorch.models.gp.GP": ("class", "models.html#gpytorch.models.GP"),
            "gpytorch.priors.prior.Prior": ("class", "priors.html"),
        },
    ),
    "botorch": (
        "https://botorch.readthedocs.io/en/latest/",
        {
            "botorch.acquisition.acquisition.AcquisitionFunction": (
                "class",
                "acquisition.html#$",
            ),
            "botorch.acquisition.analytic.AnalyticAcquisitionFunction": (
                "class",
                "acquisition.html#$",
            ),
            "botorch.acquisition.analytic.UpperConfidenceBound": (
                "class",
                "acquisition.html#$",
            ),
            "botorch.acquisition.objective.PosteriorTransform": (
                "class",
                "acquisition.html#$",
            ),
            "botorch.exceptions.errors.BotorchTensorDimensionError": (
                "exception",
                "exceptions.html#$",
            ),
            "botorch.exceptions.errors.BotorchError": (
                "exception",
                "exceptions.html#$",
            ),
            "botorch.exceptions.errors.InputDataError": (
                "exception",
                "exceptions.html#$",
            ),
            "botorch.exceptions.errors.UnsupportedError": (
                "exception",
                "exceptions.html#$",
            ),
            "botorch.models.gp_regression.SingleTaskGP": ("class", "models.html#$"),
            "botorch.models.model.Model": ("class", "models.html#$"),
            "botorch.models.transforms.input.InputTransform": (
                "class",
                "models.html#$",
            ),
            "botorch.models.transforms.outcome.OutcomeTransform": (
                "class",
                "models.html#$",
            ),
            "botorch.posteriors.posterior.Posterior": ("class", "posteriors.html#$"),
            "botorch.sampling.base.MCSampler": ("class", "sampling.html#$"),
            "botorch.sampling.pathwise.features.maps.FeatureMap": (
                "class",
                "sampling.html#$",
            ),
            "botorch.sampling.pathwise.paths.SamplePath": ("class", "sampling.html#$"),
            "botorch.sampling.pathwise.posterior_samplers.MatheronPath": (
                "class",
                "sampling.html#$",
            ),
            "botorch.test_functions.base.BaseTestProblem": (
                "class",
                "test_functions.html#$",
            ),
        },
    ),
    "ax": (
        "https://ax.readthedocs.io/en/stable/",
        {
            "ax.api.client.Client": ("class", "api.html#$"),
            "ax.core.parameter_constraint.ParameterConstraint": (
                "class",
                "core.html#$",
            ),
            "ax.core.search_space.SearchSpaceDigest": ("class", "core.html#$"),
            "ax.generation_strategy.external_generation_node.ExternalGenerationNode": (
                "class",
                "generation_strategy.html#$",
            ),
            "ax.generation_strategy.transition_criterion.MinTrials": (
                "class",
                "generation_strategy.html#$",
            ),
            "ax.generation_strategy.transition_criterion.PausingCriterion": (
                "class",
                "generation_strategy.html#$",
            ),
            "ax.generation_strategy.transition_criterion.TransitionCriterion": (
                "class",
                "generation_strategy.html#$",
            ),
            "ax.generators.torch.botorch_modular.acquisition.Acquisition": (
                "class",
                "generators.html#$",
            ),
            "ax.generators.torch.botorch_modular.surrogate.Surrogate": (
                "class",
                "generators.html#$",
            ),
        },
    ),
}


def write_inventories(folder: Path) -> dict[str, tuple[str, str]]:
    """Write an inventory for each project; return Sphinx's `intersphinx_mapping`."""
    mapping = {}
    for project, (url, names) in PROJECTS.items():
        lines = [
            f"{name} py:{role} 1 {page} -\n" for name, (role, page) in names.items()
        ]
        header = (
            f"# Sphinx inventory version 2\n# Project: {project}\n# Version: \n"
            "# The remainder of this file is compressed using zlib.\n"
        )
        path = folder / f"{project}.inv"
        path.write_bytes(header.encode() + zlib.compress("".join(lines).encode()))
        mapping[project] = (url, str(path))
    return mapping
