"""The order in which TACTICS 1.2.0 (`chem-tactics`) evaluates the products of lists.

It samples per reagent as well, in its recommended preset: top-two Thompson sampling
after a warm-up in which every reagent has its turn.
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd


# TACTICS wants a reaction; products are looked up by name and never made.
REACTION = "[C:1].[C:2].[C:3]>>[C:1][C:2][C:3]"


def order_of_tactics(
    smiles: Sequence[Sequence[str]], rewards: np.ndarray, size: int, seed: int
) -> np.ndarray:
    """Return the numbers of the first products that it evaluates.

    Args:
        smiles: Three lists of reagents.
        rewards: The reward of every product, by number.
        size: How many evaluations.
        seed: The seed.
    """
    from TACTICS.library_enumeration import SynthesisPipeline
    from TACTICS.library_enumeration.smarts_toolkit import ReactionConfig, ReactionDef
    from TACTICS.thompson_sampling import ThompsonSampler
    from TACTICS.thompson_sampling.core.evaluator_config import LookupEvaluatorConfig
    from TACTICS.thompson_sampling.presets import get_preset

    sizes = tuple(map(len, smiles))
    with tempfile.TemporaryDirectory() as folder:
        files = []
        for at, texts in enumerate(smiles):
            path = Path(folder, f"{at}.smi")
            path.write_text("".join(f"{s} {row}\n" for row, s in enumerate(texts)))
            files.append(str(path))
        names = ["_".join(map(str, position)) for position in np.ndindex(sizes)]
        scores = Path(folder, "scores.csv")
        table = pd.DataFrame({"Product_Code": names, "Scores": rewards})
        table.to_csv(scores, index=False)
        reactions = [ReactionDef(reaction_smarts=REACTION, step_index=0)]
        config = get_preset(
            "recommended",
            synthesis_pipeline=SynthesisPipeline(
                ReactionConfig(reactions=reactions, reagent_file_list=files)
            ),
            evaluator_config=LookupEvaluatorConfig(ref_filename=str(scores)),
        )
        config.auto_detect_smarts_compatibility = False
        config.hide_progress = True
        config.seed = seed
        logging.disable(logging.INFO)
        sampler = ThompsonSampler.from_config(config)
        first = sampler.warm_up(num_warmup_trials=config.num_warmup_trials)
        rest = sampler.search(num_cycles=size, max_evaluations=size)
    found = [*first["Name"], *rest["Name"]]
    positions = [tuple(map(int, name.split("_"))) for name in dict.fromkeys(found)]
    return np.ravel_multi_index(np.array(positions).T, sizes)[:size]
