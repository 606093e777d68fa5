"""Speed and robustness of knotflow's transforms next to those of other libraries."""
