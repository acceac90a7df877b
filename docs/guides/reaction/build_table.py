"""Write reaction.csv: one row per combination of the components."""

import pandas as pd

ligands = pd.read_csv("ligands.csv")  # columns: ligand, ligand_smiles
solvents = pd.DataFrame(
    {
        "solvent": ["toluene", "dioxane", "DMF", "acetonitrile"],
        "solvent_smiles": ["Cc1ccccc1", "C1COCCO1", "CN(C)C=O", "CC#N"],
    }
)
bases = pd.DataFrame({"base": ["K2CO3", "Cs2CO3", "K3PO4", "Et3N"]})
temperatures = pd.DataFrame({"temperature": [60, 80, 100]})

table = ligands.merge(solvents, how="cross").merge(bases, how="cross")
table = table.merge(temperatures, how="cross")
table.insert(0, "id", [f"R{number:03d}" for number in range(1, len(table) + 1)])
table.to_csv("reaction.csv", index=False)
print(len(table), "candidates")
