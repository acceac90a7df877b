"""Print hits.csv, without the long columns of structures."""

import pandas as pd

hits = pd.read_csv("hits.csv").drop(columns=["ligand_smiles", "solvent_smiles"])
print(hits.round(2).to_string(index=False))
