"""Write acids.csv, 200 acids, and amines.csv, 100 amines, with their SMILES."""

import pandas as pd

groups = ["F", "Cl", "Br", "C", "CC", "OC", "OCC", "N(C)C", "C#N", "C(F)(F)F"]
rings = ["c1ccc({})cc1", "c1cccc({})c1", "c1ccc({})nc1", "c1cnc({})nc1", "C1CCC({})CC1"]
linkers = ["", "C", "OC", "C=C"]
acids = [r.format(g) + x + "C(=O)O" for r in rings for x in linkers for g in groups]
rings = [
    *("Nc1ccc({})cc1", "Nc1cccc({})c1", "NCc1ccc({})cc1", "NCc1cccc({})c1"),
    *("NCCc1ccc({})cc1", "N(C)Cc1ccc({})cc1", "N1CCC({})CC1", "NC1CCC({})CC1"),
    *("N1CCN(c2ccc({})cc2)CC1", "NCCC{}"),
]
amines = [ring.format(group) for ring in rings for group in groups]

for letter, name, smiles in [("A", "acids", acids), ("B", "amines", amines)]:
    ids = [f"{letter}{number}" for number in range(1, len(smiles) + 1)]
    pd.DataFrame({"id": ids, "smiles": smiles}).to_csv(f"{name}.csv", index=False)
    print(len(smiles), name)
