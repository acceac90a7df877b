"""Write library.csv: 20,000 amides, of 200 acids and 100 amines, with their SMILES."""

import pandas as pd

groups = ["F", "Cl", "Br", "C", "CC", "OC", "OCC", "N(C)C", "C#N", "C(F)(F)F"]
rings = ["c1ccc({})cc1", "c1cccc({})c1", "c1ccc({})nc1", "c1cnc({})nc1", "C1CCC({})CC1"]
linkers = ["", "C", "OC", "C=C"]
acids = [r.format(g) + x + "C(=O)" for r in rings for x in linkers for g in groups]
rings = [
    *("Nc1ccc({})cc1", "Nc1cccc({})c1", "NCc1ccc({})cc1", "NCc1cccc({})c1"),
    *("NCCc1ccc({})cc1", "N(C)Cc1ccc({})cc1", "N1CCC({})CC1", "NC1CCC({})CC1"),
    *("N1CCN(c2ccc({})cc2)CC1", "NCCC{}"),
]
amines = [ring.format(group) for ring in rings for group in groups]

library = pd.DataFrame({"smiles": [acid + amine for acid in acids for amine in amines]})
library.insert(0, "id", [f"M{number:05d}" for number in range(1, len(library) + 1)])
library.to_csv("library.csv", index=False)
print(len(library), "molecules")
