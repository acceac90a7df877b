"""Print hits.csv."""

import pandas as pd

hits = pd.read_csv("hits.csv")
print(hits.round(2).to_string(index=False))
