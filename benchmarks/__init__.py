"""Speed and robustness of knotflow's transforms and flows next to those of other libraries."""
