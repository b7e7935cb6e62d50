"""Past forecasts compared with what happened: errors, coverage, drift, and when to retrain."""
