"""Estimates with error bars, importance weights and autocorrelation times: arrays in, numbers out."""
