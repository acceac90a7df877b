"""Write resin.csv: one row for each combination of settings."""

from itertools import product

import pandas as pd

catalysts = ["tin", "bismuth", "zinc"]
amounts = [0.5, 1, 2, 4]  # of the catalyst, in percent
temperatures = [60, 70, 80, 90, 100]
hours = [1, 2, 4, 8]

rows = product(catalysts, amounts, temperatures, hours)
table = pd.DataFrame(rows, columns=["catalyst", "amount", "temperature", "hours"])
table.insert(0, "id", [f"R{number:03d}" for number in range(1, len(table) + 1)])
table.to_csv("resin.csv", index=False)
print(len(table), "candidates")
